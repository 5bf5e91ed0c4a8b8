//! Retransmissions: lost messages are sent again, and hardly any other.

use qnic_driver::remote_memory::{ClientCounters, Limits};

use crate::cluster::Cluster;
use crate::wire::{MS, US};

/// Lets the client work for so many milliseconds, then waits until it is idle. Returns its
/// counters.
fn work(cluster: &mut Cluster, milliseconds: u64) -> ClientCounters {
    cluster.world.works_until = cluster.world.now + milliseconds * MS;
    cluster.wait("the requests", |it| {
        it.world.now > it.world.works_until && it.is_idle()
    });
    let client = cluster.client;
    cluster.world.client(client).client.counters()
}

/// Two servers that take `service` for each packet and grant `window` requests; and a client
/// with many requests and default times.
fn busy(replicas: usize, service: u64, window: u16) -> Cluster {
    let mut cluster = Cluster::detached(2);
    for server in 0..2 {
        let mut config = cluster.world.server_config();
        config.window = window;
        cluster.world.start_server_with(server, config);
    }
    cluster.attach_with(replicas, |config| {
        config.requests = 64;
        config.limits.retransmit = Limits::default().retransmit;
        config.limits.queue_delay = Limits::default().queue_delay;
    });
    cluster.write_all();
    cluster.world.depth = 2 * usize::from(window);
    cluster.world.service = service;
    cluster
}

fn requests(counters: &ClientCounters) -> u64 {
    counters.reads + counters.writes
}

/// A burst for an idle server waits in its queue for up to 32 ms, each packet longer than
/// the one before. No packet is lost, so none has to be sent again (H9).
#[test]
fn a_queue_at_the_server_is_no_loss() {
    let mut cluster = busy(2, 4 * MS, 8);
    let before = cluster.world.client(2).client.counters();
    let mut resent = before.retransmissions;
    for burst in 0..20 {
        let after = work(&mut cluster, 200);
        if burst == 0 {
            // The client has to learn how slow the servers have become.
            assert!(after.retransmissions - resent <= 4, "{after:?}");
            resent = after.retransmissions;
        }
        // Single requests in between find fast servers.
        cluster.world.service = 0;
        cluster.write_all();
        cluster.world.service = 4 * MS;
    }
    let after = cluster.world.client(2).client.counters();
    let done = requests(&after) - requests(&before);
    let resent = after.retransmissions - resent;
    assert!(done > 1000, "{done} requests");
    assert!(resent <= done / 100, "{resent} of {done} are sent again");
    assert_eq!((after.silences, after.failed), (0, 0));
}

/// A server that takes 32 ms for each request causes no retransmissions.
#[test]
fn a_slow_server_is_measured() {
    let mut cluster = busy(1, 32 * MS, 8);
    cluster.world.depth = 1;
    let first = work(&mut cluster, 1000);
    let after = work(&mut cluster, 4000);
    assert!(requests(&after) > requests(&first) + 50, "{after:?}");
    assert_eq!(after.retransmissions, first.retransmissions);
}

/// At 5 % loss in either direction, hardly more messages are sent again than were lost.
#[test]
fn hardly_more_is_sent_again_than_was_lost() {
    for service in [0, 300 * US, 3 * MS] {
        let mut cluster = busy(2, service, 8);
        cluster.world.wire.quality.lost = 50;
        cluster.world.wire.quality.delay = (20 * US, 120 * US);
        let before = cluster.world.client(2).client.counters();
        let after = work(&mut cluster, 5000);
        let done = requests(&after) - requests(&before);
        let resent = after.retransmissions - before.retransmissions;
        let lost = cluster.world.wire.lost;
        assert!(done > 1000 && lost > 100, "{done} requests, {lost} lost");
        let most = lost + lost / 10 + 10;
        assert!(
            resent <= most,
            "{resent} sent again, {lost} lost, {done} requests"
        );
    }
}

/// Nodes stand still again and again for longer than the timeout, as emulated guests do on a busy machine. The
/// links lose nothing: a few messages are sent again for each time, as often as timers fire, and not all that were
/// under way.
#[test]
fn hardly_anything_is_sent_again_when_nodes_stand_still_for_a_moment() {
    let mut cluster = busy(2, 20 * US, 64);
    let client = cluster.client;
    let before = cluster.world.client(client).client.counters();
    cluster.world.works_until = cluster.world.now + 20_000 * MS;
    let mut pauses = 0;
    while cluster.world.now < cluster.world.works_until {
        let node = [0, client, 1][pauses % 3];
        cluster
            .world
            .pause(node, (20 + 7 * (pauses as u64 % 10)) * MS);
        cluster.world.pass(150 * MS);
        pauses += 1;
    }
    let after = work(&mut cluster, 0);
    let done = requests(&after) - requests(&before);
    let resent = (after.retransmissions - before.retransmissions) as usize;
    assert!(done > 10_000, "{done} requests");
    assert!(
        resent <= 4 * pauses,
        "{resent} of {done} sent again, {pauses} pauses"
    );
    assert_eq!((after.silences, after.failed), (0, 0));
}

/// The client of a slow server waits itself, so that the server's queue stays short.
#[test]
fn the_window_follows_the_queue_of_the_server() {
    let mut cluster = busy(1, 4 * MS, 32);
    work(&mut cluster, 2000);
    let (client, now) = (cluster.client, cluster.world.now);
    cluster.world.works_until = now + 1000 * MS;
    let mut longest = 0;
    while cluster.world.now < cluster.world.works_until {
        cluster.world.pass(MS);
        longest = longest.max(cluster.world.longest_queue());
    }
    let counters = cluster.world.client(client).client.counters();
    // Without congestion control, all requests would wait for 128 ms at each server.
    assert!(longest <= 64 * MS, "{} ms, {counters:?}", longest / MS);
}
