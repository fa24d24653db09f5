import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.flume.Event;
import org.apache.flume.api.RpcClient;
import org.apache.flume.api.RpcClientFactory;
import org.apache.flume.event.EventBuilder;

/**
 * Sends the events of a file with flume-ng-sdk, as Flume's appenders do: each client waits for the answer to its request.
 *
 * Standard input has a line for each run: PORT CLIENTS REQUESTS EVENTS, where EVENTS of each request are 1 for `append`, more
 * for `appendBatch`. The answer is a line of JSON: seconds from the first request to the last answer, and percentiles
 * of the time of a request in milliseconds. Each run begins with the first event; every client has its part of them.
 *
 *   AvroClient FILE
 *
 * A line of FILE has host, timestamp and body of an event, with tabs between them.
 */
public class AvroClient {
  public static void main(String[] arguments) throws Exception {
    List<Event> events = new ArrayList<>();
    for (String line : Files.readAllLines(Path.of(arguments[0]))) { // before the time that counts
      String[] fields = line.split("\t", 3);
      Map<String, String> headers =
          Map.of("host", fields[0], "timestamp", fields[1], "flume.client.log4j.log.level", "30000");
      events.add(EventBuilder.withBody(fields[2].getBytes(StandardCharsets.UTF_8), headers));
    }
    Scanner lines = new Scanner(System.in);
    while (lines.hasNextInt()) {
      int port = lines.nextInt();
      int clients = lines.nextInt();
      int requests = lines.nextInt();
      run(events, port, clients, requests, lines.nextInt());
    }
  }

  private static void run(List<Event> all, int port, int clients, int requests, int events) throws Exception {
    long[] taken = new long[clients * requests];
    List<RpcClient> open = new ArrayList<>();
    List<Thread> threads = new ArrayList<>();
    List<Throwable> failures = new ArrayList<>();
    for (int number = 0; number < clients; number++) {
      RpcClient client = RpcClientFactory.getDefaultInstance("127.0.0.1", port, Math.max(events, 1));
      open.add(client);
      int first = number * requests;
      threads.add(
          new Thread(
              () -> {
                try {
                  for (int request = first; request < first + requests; request++) {
                    List<Event> batch = all.subList(request * events, (request + 1) * events);
                    long started = System.nanoTime();
                    if (events == 1) {
                      client.append(batch.get(0));
                    } else {
                      client.appendBatch(batch);
                    }
                    taken[request] = System.nanoTime() - started;
                  }
                } catch (Throwable failure) {
                  failures.add(failure);
                }
              }));
    }
    long started = System.nanoTime();
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    double seconds = (System.nanoTime() - started) / 1e9;
    open.forEach(RpcClient::close);
    if (!failures.isEmpty()) {
      failures.get(0).printStackTrace();
      System.exit(1);
    }
    Arrays.sort(taken);
    System.out.printf(
        "{\"seconds\": %f, \"p50\": %f, \"p99\": %f, \"max\": %f}%n",
        seconds,
        taken[taken.length / 2] / 1e6,
        taken[(int) (taken.length * 0.99)] / 1e6,
        taken[taken.length - 1] / 1e6);
  }
}
