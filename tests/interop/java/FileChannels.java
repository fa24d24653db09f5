import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.flume.ChannelException;
import org.apache.flume.Context;
import org.apache.flume.Event;
import org.apache.flume.Transaction;
import org.apache.flume.channel.file.FileChannel;
import org.apache.flume.event.EventBuilder;

/**
 * Flume's file channel, one at a time. Reads one command a line and answers each with a line of its own:
 *
 *   open key=value …      a channel with these options; "opened", or "failed" and why
 *   begin T, commit T, rollback T
 *                         the transaction T, which has a thread of its own, as Flume's are bound to threads; "done",
 *                         or "failed" where the channel refuses
 *   put T BODY SIZE       in it, with the header "n" and as many bytes behind the body; "done" or "failed"
 *   take T                in it; the body and the header, or "nothing"
 *   checkpoint            writes one now; "done"
 *   drain                 takes all there is, in a transaction that is rolled back; bodies, a blank between them
 *   close                 as Flume's agent does at its end; "closed", or "stuck" where it does not come to an end, as
 *                         happens while the copy of a checkpoint is made
 *   end                   ends; "ended"
 */
public class FileChannels {
  private static FileChannel channel;
  private static final Map<String, ExecutorService> THREADS = new HashMap<>();
  private static final Map<String, Transaction> OPEN = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err); // Flume prints, too
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null && !line.equals("end"); line = commands.readLine()) {
      String[] words = line.split(" ");
      try {
        answers.println(answer(words));
      } catch (ExecutionException e) {
        answers.println("failed " + e.getCause());
      } catch (Exception e) {
        answers.println("failed " + e);
      }
    }
    answers.println("ended");
    Runtime.getRuntime().halt(0);
  }

  private static String answer(String[] words) throws Exception {
    switch (words[0]) {
      case "open":
        Context context = new Context();
        for (int at = 1; at < words.length; at++) {
          String[] option = words[at].split("=", 2);
          context.put(option[0], option[1]);
        }
        channel = new FileChannel();
        channel.setName("flumes");
        channel.configure(context);
        channel.start();
        return channel.isOpen() ? "opened" : "failed";
      case "begin":
        return in(words[1], () -> {
          Transaction transaction = channel.getTransaction();
          transaction.begin();
          OPEN.put(words[1], transaction);
          return "done";
        });
      case "commit":
      case "rollback":
        return in(words[1], () -> {
          Transaction transaction = OPEN.remove(words[1]);
          try {
            if (words[0].equals("commit")) {
              try {
                transaction.commit();
              } catch (ChannelException e) {
                transaction.rollback();
                throw e;
              }
            } else {
              transaction.rollback();
            }
          } finally {
            transaction.close();
          }
          return "done";
        });
      case "put":
        return in(words[1], () -> {
          Map<String, String> headers = new HashMap<>();
          headers.put("n", words[2]);
          headers.put("sch\u00f6n", "gr\u00fc\u00dfe \ud83d\ude00");
          channel.put(EventBuilder.withBody((words[2] + "_".repeat(Integer.parseInt(words[3]))).getBytes(), headers));
          return "done";
        });
      case "take":
        return in(words[1], () -> {
          Event event = channel.take();
          return event == null ? "nothing" : new String(event.getBody()).replace("_", "");
        });
      case "checkpoint":
        Field field = FileChannel.class.getDeclaredField("log");
        field.setAccessible(true);
        Object log = field.get(channel);
        Method write = log.getClass().getDeclaredMethod("writeCheckpoint", Boolean.class);
        write.setAccessible(true);
        write.invoke(log, true);
        return "done";
      case "drain":
        return in("drain", () -> {
          StringBuilder bodies = new StringBuilder("all");
          Transaction transaction = channel.getTransaction();
          transaction.begin();
          for (Event event = channel.take(); event != null; event = channel.take()) {
            bodies.append(' ').append(new String(event.getBody()).replace("_", ""));
          }
          transaction.rollback();
          transaction.close();
          return bodies.toString();
        });
      default:
        for (String name : OPEN.keySet().toArray(new String[0])) {
          in(name, () -> {
            Transaction transaction = OPEN.remove(name);
            transaction.rollback();
            transaction.close();
            return "";
          });
        }
        FileChannel closing = channel;
        Thread thread = new Thread(closing::stop);
        thread.setDaemon(true);
        thread.start();
        thread.join(5_000);
        return thread.isAlive() ? "stuck" : "closed";
    }
  }

  private static String in(String transaction, Callable<String> call) throws Exception {
    return THREADS.computeIfAbsent(transaction, name -> Executors.newSingleThreadExecutor()).submit(call).get();
  }
}
