//! Reservations, and servers that are full (H9).

use qnic_abi::remote_memory::Reason;
use qnic_driver::remote_memory::{ClientState, Failure, ServerState};

use crate::cluster::Cluster;
use crate::wire::MS;
use crate::world::{BLOCKS, SERVER_TIMEOUT};

/// Servers with so many pages each, and no client yet.
fn servers(pages: &[usize]) -> Cluster {
    let mut cluster = Cluster::detached(pages.len());
    for (server, pages) in pages.iter().enumerate() {
        let mut config = cluster.world.server_config();
        (config.pages, config.quota) = (*pages, *pages);
        cluster.world.start_server_with(server, config);
    }
    cluster
}

/// How attaching has failed: the reason, and the room that there is.
fn refusal(cluster: &mut Cluster, client: usize) -> Option<(Reason, u64)> {
    match cluster.client_state(client) {
        ClientState::Failed(refusal) => refusal.map(|it| (it.reason, it.room)),
        state => panic!("it has not failed: {state:?}"),
    }
}

/// A volume that servers cannot hold with all its replicas is refused at once, with the room that there
/// is. The room of one server for more than the whole volume counts for nothing.
#[test]
fn a_volume_that_servers_cannot_hold_is_refused() {
    let blocks = BLOCKS as usize;
    for (pages, room) in [
        ([blocks, blocks - 1], 2 * BLOCKS - 1),
        ([4 * blocks, 5], BLOCKS + 5),
    ] {
        let mut cluster = servers(&pages);
        cluster.begin_to_attach(2);
        cluster.world.pass(SERVER_TIMEOUT);
        assert_eq!(refusal(&mut cluster, 2), Some((Reason::NoRoom, room)));
        assert_eq!(cluster.world.server(0).server.committed(), 0);
        cluster.attach_with(2, |config| config.thin = true);
    }
}

/// Servers that leave while a volume attaches serve until its pages are elsewhere, so it is not refused; it
/// has reserved all its room again when they are back (seeds 7290 and 8018 of the simulator).
#[test]
fn servers_that_leave_while_a_volume_attaches_are_enough() {
    let mut cluster = Cluster::detached(4);
    cluster.world.wire.cut(3, 4);
    cluster.begin_to_attach(3);
    cluster.world.pass(SERVER_TIMEOUT / 3);
    for server in 0..2 {
        let now = cluster.world.now;
        cluster.world.server(server).server.leave(now);
        cluster.world.pump(server);
    }
    cluster.world.pass(SERVER_TIMEOUT / 3);
    cluster.world.wire.heal();
    cluster.wait("attach", |it| it.client_state(4) == ClientState::Active);
    for server in 0..2 {
        cluster.wait("leaving", |it| it.world.server(server).server.has_left());
        cluster.world.start_server(server);
    }
    cluster.wait("room", |it| {
        let all = 0..4;
        let committed = all.map(|server| it.world.server(server).server.committed());
        committed.sum::<usize>() >= 3 * BLOCKS as usize
    });
    cluster.write_all();
    assert_eq!(cluster.failures(), []);
}

/// A server that falls silent while a volume attaches may still bring the room that is missing.
#[test]
fn a_server_that_falls_silent_has_not_refused_its_room() {
    let mut cluster = servers(&[2 * BLOCKS as usize / 3; 3]);
    cluster.world.kill(2);
    cluster.begin_to_attach(2);
    cluster.world.pass(SERVER_TIMEOUT / 2);
    // The first has given memory, and is silent when the last one comes.
    cluster.world.wire.cut(0, 3);
    cluster.wait("silence", |it| it.server_state(0) == ServerState::Silent);
    cluster.world.start_server(2);
    cluster.world.pass(SERVER_TIMEOUT);
    let state = cluster.client_state(3);
    assert!(matches!(state, ClientState::Attaching { .. }), "{state:?}");
    cluster.world.wire.heal();
    cluster.wait("attach", |it| it.client_state(3) == ClientState::Active);
}

/// What one volume has reserved no other one gets, though nothing was written yet; and all of it can be
/// written, at any speed, until the servers have not one page left.
#[test]
fn what_is_reserved_is_there() {
    let need = 2 * BLOCKS as usize;
    for pages in [
        [need / 2, need / 2, 0],
        [need / 3; 3],
        [5, need - 5 - 24, 24],
        [24, 24, 24],
    ] {
        let pages: Vec<_> = pages.into_iter().filter(|it| *it > 0).collect();
        let mut cluster = servers(&pages);
        let client = cluster.client;
        cluster.attach(2);
        let committed = |cluster: &mut Cluster| -> usize {
            let all = 0..pages.len();
            all.map(|it| cluster.world.server(it).server.committed())
                .sum()
        };
        assert_eq!(committed(&mut cluster), need, "{pages:?}");
        let all: Vec<_> = (0..pages.len()).collect();
        let config = cluster.world.client_config(8, 2, &all);
        cluster.world.start_client(client + 1, config);
        cluster.world.pass(SERVER_TIMEOUT);
        let left = pages.iter().sum::<usize>() - need;
        let refused = refusal(&mut cluster, client + 1);
        assert_eq!(refused, Some((Reason::NoRoom, left as u64)), "{pages:?}");

        for block in 0..BLOCKS {
            cluster.world.write(client, block);
            if block % 12 == 11 {
                cluster.wait("the writes", Cluster::is_idle);
            }
        }
        cluster.write_all();
        cluster.read_all();
        assert_eq!(cluster.failures(), [], "{pages:?}");
        let it = &cluster.world.client(client).client;
        let counters = it.counters();
        assert_eq!((it.degraded(), counters.full, counters.degraded), (0, 0, 0));
        assert!(!it.is_full(), "every block is there");
        assert_eq!(committed(&mut cluster), need, "{pages:?}");
    }
}

/// A write for which every server is full fails at once, with fewer messages than there are servers; when
/// that is known, with none. Stored blocks can be written again.
#[test]
fn a_write_that_finds_all_servers_full_fails_at_once() {
    let mut cluster = servers(&[4, 16]);
    cluster.attach_with(1, |config| config.thin = true);
    for block in 0..20 {
        assert!(!cluster.world.client(2).client.is_full());
        cluster.world.write(2, block);
        cluster.wait("the write", Cluster::is_idle);
    }
    assert_eq!(cluster.failures(), []);
    assert_eq!((cluster.server_pages(0), cluster.server_pages(1)), (4, 16));
    for block in 20..BLOCKS {
        let (now, sent) = (cluster.world.now, cluster.world.wire.sent);
        cluster.world.write(2, block);
        cluster.wait("the error", Cluster::is_idle);
        assert_eq!(cluster.failures(), [Failure::Full]);
        assert!(cluster.world.now <= now + 2 * MS, "at once");
        let sent = cluster.world.wire.sent - sent;
        assert!(sent <= if block == 20 { 6 } else { 2 }, "{sent} messages");
    }
    let it = &cluster.world.client(2).client;
    assert!(it.is_full());
    assert_eq!((it.counters().full, it.counters().timed_out), (4, 0));
    for block in 0..20 {
        cluster.world.write(2, block);
        cluster.wait("the write", Cluster::is_idle);
    }
    assert_eq!(cluster.failures(), []);
}

/// Many writes to full servers cost a few messages each second, and not one for each write.
#[test]
fn full_servers_are_left_alone() {
    let mut cluster = servers(&[4, 4]);
    cluster.attach_with(2, |config| config.thin = true);
    (0..4).for_each(|block| cluster.world.write(2, block));
    cluster.wait("the writes", Cluster::is_idle);
    assert_eq!(cluster.failures(), []);
    let sent = cluster.world.wire.sent;
    for round in 0..1000 {
        cluster.world.write(2, 4 + round % 20);
        cluster.wait("the error", Cluster::is_idle);
        cluster.world.pass(2 * MS);
    }
    assert_eq!(cluster.failures(), [Failure::Full; 1000]);
    // Two servers are asked whether they are alive 14 times a second, and for room once.
    let sent = cluster.world.wire.sent - sent;
    assert!(sent < 300, "{sent} messages");
}

/// While all servers are there, no write of two copies ends well with one: one that one server has and
/// the other one has no room for fails. If a server is missing, one copy is enough, and counted.
#[test]
fn a_copy_that_has_no_room_is_missed() {
    let mut cluster = servers(&[4, 64]);
    cluster.attach_with(2, |config| config.thin = true);
    (0..4).for_each(|block| cluster.world.write(2, block));
    cluster.wait("the writes", Cluster::is_idle);
    assert_eq!(cluster.failures(), []);
    cluster.world.write(2, 4);
    cluster.wait("the error", Cluster::is_idle);
    assert_eq!(cluster.failures(), [Failure::Full]);
    let it = &cluster.world.client(2).client;
    assert!(it.is_full());
    assert_eq!(
        (it.degraded(), it.counters().degraded),
        (1, 0),
        "the failed one may be there"
    );

    cluster.world.kill(0);
    cluster.wait("silence", |it| it.server_state(0) == ServerState::Silent);
    cluster.world.write(2, 5);
    cluster.wait("the write", Cluster::is_idle);
    assert_eq!(cluster.failures(), []);
    let it = &cluster.world.client(2).client;
    assert!(!it.is_full() && it.degraded() == 6);
    assert_eq!(it.counters().degraded, 1);
}
