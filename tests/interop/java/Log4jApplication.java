import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.log4j.LogManager;
import org.apache.log4j.Logger;

/**
 * An application that has log4j 1 and nothing else to log with. Reads one command a line and answers each with a line of
 * its own:
 *
 *   log COUNT TAG   as many warnings; "logged"
 *   throw TAG       an error with its stack trace; "logged"
 *   end             flushes what is logged, and ends
 *
 * Bodies are "TAG-NUMBER".
 */
public class Log4jApplication {
  private static final Logger LOG = Logger.getLogger("app.one");

  public static void main(String[] arguments) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null && !line.equals("end"); line = commands.readLine()) {
      String[] words = line.split(" ");
      if (words[0].equals("log")) {
        for (int number = 0; number < Integer.parseInt(words[1]); number++) {
          LOG.warn(words[2] + "-" + number);
        }
      } else {
        LOG.error(words[1], new IllegalStateException("no", new RuntimeException("why")));
      }
      System.out.println("logged");
    }
    Thread flush = new Thread(LogManager::shutdown);
    flush.setDaemon(true);
    flush.start();
    flush.join(5_000);  // log4j 1 has no limit of its own
    System.out.println("ended");
  }
}
