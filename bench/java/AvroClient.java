import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.flume.Event;
import org.apache.flume.api.RpcClient;
import org.apache.flume.api.RpcClientFactory;
import org.apache.flume.event.EventBuilder;

/**
 * Sends numbered events with flume-ng-sdk, as Flume's appenders do: each client waits for the answer to its request.
 *
 * Standard input has a line for each run: PORT CLIENTS REQUESTS EVENTS, where EVENTS of each request are 1 for `append`, more
 * for `appendBatch`. The answer is a line of JSON: seconds from the first request to the last answer, and percentiles
 * of the time of a request in milliseconds. Numbers begin with 0 in each run; every client has its part of them.
 */
public class AvroClient {
  public static void main(String[] arguments) throws Exception {
    Scanner lines = new Scanner(System.in);
    while (lines.hasNextInt()) {
      int port = lines.nextInt();
      int clients = lines.nextInt();
      int requests = lines.nextInt();
      int events = lines.nextInt();
      run(port, clients, requests, events);
    }
  }

  private static void run(int port, int clients, int requests, int events) throws Exception {
    Map<String, String> headers = new HashMap<>();
    headers.put("host", "web-1");
    headers.put("flume.client.log4j.log.level", "30000");
    byte[][] bodies = new byte[clients * requests * events][];
    for (int number = 0; number < bodies.length; number++) { // before the time that counts: nobody's client formats numbers
      bodies[number] =
          String.format("Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2 id=%09d", number)
              .getBytes("UTF-8");
    }
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
                    List<Event> batch = new ArrayList<>(events);
                    for (int event = 0; event < events; event++) {
                      batch.add(EventBuilder.withBody(bodies[request * events + event], headers));
                    }
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
