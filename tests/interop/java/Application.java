import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.flume.Event;
import org.apache.flume.api.RpcClient;
import org.apache.flume.api.RpcClientFactory;
import org.apache.flume.event.EventBuilder;

/**
 * An application as Flume's users have it. Reads one command a line and answers each with a line of its own:
 *
 *   log COUNT TAG              as many events through log4j 1, log4j 2 and logback each; "logged"
 *   throw TAG                  an error with its stack trace through log4j 2 and logback; "logged"
 *   stock COUNT TAG FILE       as many events through log4j 1's logger app.stock, which these properties set up;
 *                              "logged"
 *   rpc COUNT TAG key=value …  as many events through RpcClientFactory with these properties, half of them one by
 *                              one, half in batches; "stored N", the number of those that were acknowledged
 *   end                        flushes what is logged, and ends
 *
 * Bodies are "TAG-API-NUMBER".
 */
public class Application {
  private static final org.apache.log4j.Logger LOG4J1 = org.apache.log4j.Logger.getLogger("app.one");
  private static final org.apache.logging.log4j.Logger LOG4J2 =
      org.apache.logging.log4j.LogManager.getLogger("app.two");
  private static final org.slf4j.Logger LOGBACK = org.slf4j.LoggerFactory.getLogger("app.three");

  public static void main(String[] arguments) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null && !line.equals("end"); line = commands.readLine()) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "log":
          log(Integer.parseInt(words[1]), words[2]);
          System.out.println("logged");
          break;
        case "throw":
          Exception error = new IllegalStateException("no", new RuntimeException("why"));
          LOG4J2.error(words[1] + "-log4j2", error);
          LOGBACK.error(words[1] + "-logback", error);
          System.out.println("logged");
          break;
        case "stock":
          org.apache.log4j.PropertyConfigurator.configure(words[3]);
          for (int number = 0; number < Integer.parseInt(words[1]); number++) {
            org.apache.log4j.Logger.getLogger("app.stock").warn(words[2] + "-stock-" + number);
          }
          System.out.println("logged");
          break;
        default:
          System.out.println("stored " + rpc(Integer.parseInt(words[1]), words[2], words));
      }
    }
    Thread flush = new Thread(org.apache.log4j.LogManager::shutdown);
    flush.setDaemon(true);
    flush.start();
    flush.join(10_000);  // log4j 1 has no limit of its own
    org.apache.logging.log4j.LogManager.shutdown();
    ((ch.qos.logback.classic.LoggerContext) org.slf4j.LoggerFactory.getILoggerFactory()).stop();
    System.out.println("ended");
  }

  private static void log(int count, String tag) {
    org.apache.logging.log4j.ThreadContext.put("user", "jane");
    org.slf4j.MDC.put("user", "jane");
    for (int number = 0; number < count; number++) {
      LOG4J1.warn(tag + "-log4j1-" + number);
      LOG4J2.warn("{}-log4j2-{}", tag, number);
      LOGBACK.warn("{}-logback-{}", tag, number);
    }
  }

  private static int rpc(int count, String tag, String[] words) {
    Properties properties = new Properties();
    for (int i = 3; i < words.length; i++) {
      int equals = words[i].indexOf('=');
      properties.setProperty(words[i].substring(0, equals), words[i].substring(equals + 1).replace('+', ' '));
    }
    int stored = 0;
    RpcClient client = RpcClientFactory.getInstance(properties);
    try {
      int half = count / 2;
      for (int number = 0; number < half; number++) {
        client.append(event(tag, number));
        stored++;
      }
      List<Event> batch = new ArrayList<>();
      for (int number = half; number < count; number++) {
        batch.add(event(tag, number));
        if (batch.size() == client.getBatchSize() || number == count - 1) {
          client.appendBatch(batch);
          stored += batch.size();
          batch.clear();
        }
      }
    } catch (org.apache.flume.EventDeliveryException e) {
      System.err.println(tag + ": " + e + ", because of " + e.getCause());
    } finally {
      client.close();
    }
    return stored;
  }

  private static Event event(String tag, int number) {
    Map<String, String> headers = new HashMap<>();
    headers.put("number", String.valueOf(number));
    headers.put("grüße", "世界");
    return EventBuilder.withBody(tag + "-rpc-" + number, StandardCharsets.UTF_8, headers);
  }
}
