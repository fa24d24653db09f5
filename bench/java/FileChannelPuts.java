import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.flume.Context;
import org.apache.flume.Event;
import org.apache.flume.Transaction;
import org.apache.flume.channel.file.FileChannel;
import org.apache.flume.event.EventBuilder;

/**
 * Puts BATCHES batches of the events of FILE from each of WRITERS threads into Flume's file channel, in DIRECTORY, and
 * takes them out again. Prints the seconds of the puts and those of the takes. A line of FILE has host, timestamp and
 * body of an event, with tabs between them.
 *
 *   FileChannelPuts DIRECTORY WRITERS BATCHES FILE
 */
public class FileChannelPuts {
  public static void main(String[] arguments) throws Exception {
    String directory = arguments[0];
    int writers = Integer.parseInt(arguments[1]);
    int batches = Integer.parseInt(arguments[2]);
    Context context = new Context();
    context.put("checkpointDir", directory + "/checkpoint");
    context.put("dataDirs", directory + "/data");
    context.put("capacity", "10000000");
    context.put("transactionCapacity", "10000");
    FileChannel channel = new FileChannel();
    channel.setName("measured");
    channel.configure(context);
    channel.start();
    List<Event> batch = new ArrayList<>();
    for (String line : Files.readAllLines(Path.of(arguments[3]))) {
      String[] fields = line.split("\t", 3);
      Map<String, String> headers = Map.of("host", fields[0], "timestamp", fields[1]);
      batch.add(EventBuilder.withBody(fields[2].getBytes(StandardCharsets.UTF_8), headers));
    }
    int events = batch.size();
    put(channel, batch, 20);
    take(channel, 20 * events, events);
    List<Thread> threads = new ArrayList<>();
    for (int writer = 0; writer < writers; writer++) {
      threads.add(new Thread(() -> put(channel, batch, batches)));
    }
    long started = System.nanoTime();
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    long stored = System.nanoTime();
    take(channel, writers * batches * events, events);
    System.out.println("seconds " + (stored - started) / 1e9 + " " + (System.nanoTime() - stored) / 1e9);
    channel.stop();
  }

  private static void put(FileChannel channel, List<Event> batch, int batches) {
    for (int number = 0; number < batches; number++) {
      Transaction transaction = channel.getTransaction();
      transaction.begin();
      batch.forEach(channel::put);
      transaction.commit();
      transaction.close();
    }
  }

  private static void take(FileChannel channel, int all, int events) {
    for (int taken = 0; taken < all; ) {
      Transaction transaction = channel.getTransaction();
      transaction.begin();
      for (int number = 0; number < events; number++, taken++) {
        if (channel.take() == null) {
          throw new IllegalStateException("an event is missing");
        }
      }
      transaction.commit();
      transaction.close();
    }
  }
}
