//! Single events, one by one.

use qnic_abi::remote_memory::Reason;
use qnic_abi::Secret;
use qnic_driver::remote_memory::{AttachRefusal, ClientState, Failure, ServerState};

use crate::cluster::Cluster;
use crate::wire::MS;
use crate::world::{address, BLOCKS, LEASE, REQUEST_TIMEOUT, SERVER_TIMEOUT};

/// Within this time all servers have answered, and no request has timed out on a server.
const SOON: u64 = SERVER_TIMEOUT / 2;

/// A written block is read, an unwritten one is zero, and the servers share the load (H9).
#[test]
fn pages_come_back_from_the_servers_that_share_them() {
    let mut cluster = Cluster::new(3, 2);
    cluster.read_all();
    cluster.write_all();
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
    for server in 0..3 {
        assert_eq!(cluster.server_pages(server), 2 * BLOCKS as usize / 3);
    }
    let client = cluster.client;
    let it = &cluster.world.client(client).client;
    let counters = it.counters();
    assert_eq!((counters.reads, counters.writes), (2 * BLOCKS, BLOCKS));
    assert_eq!((counters.retransmissions, counters.stale_answers), (0, 0));
    assert_eq!(it.read_latency().counts().iter().sum::<u64>(), 2 * BLOCKS);
    assert!(
        it.write_latency().quantile_us(500) >= 64,
        "two ways over the wire"
    );
    let pages: u64 = it.servers().map(|server| server.pages).sum();
    assert_eq!(pages, 2 * BLOCKS);
}

/// A write completes only when all live servers that are to have it have it (H9).
#[test]
fn a_write_completes_when_all_replicas_have_it() {
    let mut cluster = Cluster::new(2, 2);
    cluster.world.wire.cut(1, 2);
    cluster.world.write(2, 0);
    cluster.world.pass(SERVER_TIMEOUT / 2);
    assert!(!cluster.is_idle(), "one of two has it");
    cluster.world.wire.heal();
    cluster.wait("the write", Cluster::is_idle);
    assert_eq!((cluster.server_pages(0), cluster.server_pages(1)), (1, 1));

    cluster.world.kill(1);
    cluster.world.write(2, 1);
    cluster.wait("the write", Cluster::is_idle);
    assert_eq!(cluster.server_state(1), ServerState::Silent);
    assert_eq!(cluster.failures(), [], "the others have it");
    assert!(cluster.world.client(2).longest >= SERVER_TIMEOUT / 2);
}

/// The pages of a killed server are copied to others within a short time, and then
/// the next server may be killed (H9).
#[test]
fn servers_are_killed_one_after_the_other_and_no_page_is_lost() {
    let mut cluster = Cluster::new(4, 2);
    cluster.write_all();
    for victim in 0..2 {
        let lost = cluster.server_pages(victim) as u64;
        let before = cluster.world.client(4).client.counters().copied;
        cluster.world.kill(victim);
        cluster.wait("silence", |it| {
            it.server_state(victim) == ServerState::Silent
        });
        assert!(cluster.world.client(4).client.repair().running);
        cluster.wait("repair", Cluster::is_repaired);
        let after = cluster.world.client(4).client.counters().copied;
        assert_eq!(after - before, lost);
        cluster.read_all();
    }
    assert_eq!(cluster.failures(), []);
    assert_eq!((cluster.server_pages(2), cluster.server_pages(3)), (24, 24));
}

/// A server that comes back with empty memory is not taken for a holder, however fast it was (H9).
#[test]
fn a_restarted_server_is_not_the_one_that_had_the_data() {
    let mut cluster = Cluster::new(1, 1);
    cluster.write_all();
    cluster.world.start_server(0);
    cluster.each(|cluster, block| cluster.world.read(1, block));
    let failures = cluster.failures();
    assert_eq!(failures.len() as u64, BLOCKS);
    assert!(failures.iter().all(|failure| *failure == Failure::Lost));
    cluster.wait("the server", |it| it.server_state(0) == ServerState::Live);
    cluster.write_all();
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
}

/// Without any server requests end with an error, in time (H9).
#[test]
fn too_few_servers_are_an_error_and_not_a_hang() {
    let mut cluster = Cluster::new(2, 2);
    cluster.write_all();
    cluster.world.kill(0);
    cluster.world.kill(1);
    let begin = cluster.world.now;
    for block in 0..4 {
        cluster.world.write(2, block);
        cluster.world.read(2, block + 4);
        cluster.world.read(2, block);
    }
    cluster.wait("the errors", Cluster::is_idle);
    assert!(cluster.world.now <= begin + REQUEST_TIMEOUT + 2 * MS);
    assert_eq!(cluster.failures(), [Failure::TimedOut; 12]);
}

/// Of requests one after the other, only the first waits: later ones fail at once, until a server
/// answers again.
#[test]
fn requests_to_servers_that_are_silent_for_long_fail_at_once() {
    let mut cluster = Cluster::detached(2);
    for server in 0..2 {
        let mut config = cluster.world.server_config();
        config.lease = 10 * REQUEST_TIMEOUT;
        cluster.world.start_server_with(server, config);
    }
    cluster.attach(2);
    cluster.write_all();
    let begin = cluster.world.now;
    cluster.world.wire.cut(0, 2);
    cluster.world.wire.cut(1, 2);
    for round in 0..20 {
        cluster.world.write(2, round % 4);
        cluster.world.read(2, 4 + round % 4);
        cluster.wait("the errors", Cluster::is_idle);
        assert!(cluster.world.now <= begin + REQUEST_TIMEOUT + 20 * MS);
    }
    assert_eq!(cluster.failures(), [Failure::TimedOut; 40]);
    cluster.world.wire.heal();
    cluster.wait("the servers", |it| {
        [0, 1].map(|server| it.server_state(server)) == [ServerState::Live; 2]
    });
    cluster.write_all();
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
}

/// A cut that is shorter than the time limit of requests costs nothing but time.
#[test]
fn a_wire_that_returns_has_lost_nothing() {
    let mut cluster = Cluster::new(1, 1);
    cluster.write_all();
    cluster.world.wire.cut(0, 1);
    cluster.world.pass(2 * SERVER_TIMEOUT);
    assert_eq!(cluster.server_state(0), ServerState::Silent);
    cluster.world.write(1, 0);
    cluster.world.read(1, 1);
    cluster.world.pass(SERVER_TIMEOUT);
    cluster.world.wire.heal();
    cluster.wait("the requests", Cluster::is_idle);
    assert_eq!(cluster.server_state(0), ServerState::Live);
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
}

/// A write whose answers are lost fails although its page is stored. If a read returns it, later
/// reads return nothing older.
#[test]
fn a_write_that_has_failed_may_be_there() {
    let mut cluster = Cluster::new(1, 1);
    cluster.write_all();
    cluster.world.wire.cut_one_way(0, 1);
    cluster.world.write(1, 3);
    cluster.wait("the error", Cluster::is_idle);
    assert_eq!(cluster.failures(), [Failure::TimedOut]);
    cluster.world.wire.heal();
    cluster.wait("the server", |it| it.server_state(0) == ServerState::Live);
    cluster.read_all();
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
    assert_eq!(cluster.world.client(1).client.counters().bad_answers, 0);
}

/// A cluster of two servers. One of them answers everything except a write: `lost` of its pages are
/// lost on their way.
fn after_lost_pages(lost: u64) -> Cluster {
    let mut cluster = Cluster::detached(2);
    cluster.attach_with(2, |config| config.limits.request_timeout = 10_000 * MS);
    cluster.write_all();
    // If no page ever comes, the server seems to forget: then there are too few copies.
    if lost == u64::MAX {
        cluster.world.honest_from = u64::MAX;
    }
    cluster.world.wire.lose_pages(1, lost);
    cluster.world.write(2, 0);
    for _ in 0..30 {
        (1..9).for_each(|block| cluster.world.read(2, block));
        cluster.world.pass(SERVER_TIMEOUT / 3);
    }
    assert!(cluster.is_idle());
    assert_eq!(cluster.failures(), []);
    cluster
}

/// A server is not blamed for a wire that loses one write nine times (seed 11994 of the
/// simulator), but for never storing it.
#[test]
fn a_server_is_not_blamed_for_a_wire() {
    let mut cluster = after_lost_pages(9);
    assert_eq!(cluster.world.client(2).client.counters().bad_answers, 0);
    let mut cluster = after_lost_pages(u64::MAX);
    assert_ne!(cluster.world.client(2).client.counters().bad_answers, 0);
}

/// The pages of a server that leaves in order are moved first, even if no other server has them (H9).
#[test]
fn a_server_leaves_and_its_pages_are_elsewhere() {
    let mut cluster = Cluster::new(3, 1);
    cluster.write_all();
    let pages = cluster.server_pages(0) as u64;
    assert!(pages > 0);
    let now = cluster.world.now;
    cluster.world.server(0).server.leave(now);
    cluster.world.pump(0);
    cluster.wait("leaving", |it| it.world.server(0).server.has_left());
    assert_eq!(cluster.world.client(3).client.counters().copied, pages);
    cluster.world.server(0).assert_quiet();
    cluster.world.kill(0);
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
}

/// The last server cannot leave: no other can take the pages.
#[test]
fn a_server_that_is_needed_waits() {
    let mut cluster = Cluster::new(1, 1);
    cluster.write_all();
    let now = cluster.world.now;
    cluster.world.server(0).server.leave(now);
    cluster.world.pump(0);
    cluster.world.pass(4 * LEASE);
    assert!(!cluster.world.server(0).server.has_left());
    cluster.write_all();
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
}

/// The state of a client that this server has refused, for this reason.
fn failed(server: usize, reason: Reason) -> ClientState {
    let server = address(server);
    ClientState::Failed(Some(AttachRefusal {
        server,
        reason,
        room: 0,
    }))
}

/// A client without the key gets no memory, and is refused at once.
#[test]
fn another_key_attaches_nothing() {
    let mut cluster = Cluster::detached(1);
    let mut config = cluster.world.client_config(7, 1, &[0]);
    config.key = Secret([1; 16]);
    cluster.world.start_client(1, config);
    cluster.world.pass(SOON);
    assert_eq!(cluster.client_state(1), failed(0, Reason::WrongKey));
    assert_eq!(cluster.world.server(0).server.attached(), 0);
}

/// When fewer servers than replicas are left that have not refused, for any reason, the
/// client fails, and detaches from the others. With one refusal less, it attaches (H9).
#[test]
fn attaching_fails_as_soon_as_too_few_servers_are_left() {
    for reason in [Reason::WrongKey, Reason::TooManyClients, Reason::Leaving] {
        for refusing in [1..2, 1..3] {
            let mut cluster = Cluster::detached(3);
            for server in refusing.clone() {
                cluster.refuses(server, reason);
            }
            let config = cluster.world.client_config(7, 2, &[0, 1, 2]);
            cluster.world.start_client(4, config);
            cluster.world.pass(SOON);
            let attached = refusing.len() == 1;
            let expected = match attached {
                true => ClientState::Active,
                false => failed(1, reason),
            };
            assert_eq!(cluster.client_state(4), expected, "{reason:?}");
            let there = cluster.world.server(0).server.attached();
            assert_eq!(there, usize::from(attached), "{reason:?}");
        }
    }
}

/// A silent server may still start: the client does not fail before the time limit (H9).
#[test]
fn a_server_that_is_silent_has_not_refused() {
    let mut cluster = Cluster::detached(2);
    cluster.refuses(0, Reason::WrongKey);
    cluster.world.kill(1);
    let config = cluster.world.client_config(7, 1, &[0, 1]);
    cluster.world.start_client(3, config);
    cluster.world.pass(SOON);
    let state = cluster.client_state(3);
    assert!(matches!(state, ClientState::Attaching { .. }), "{state:?}");
    cluster.world.start_server(1);
    cluster.wait("attach", |it| it.client_state(3) == ClientState::Active);
}

/// One volume has one client (H9).
#[test]
fn a_second_client_of_a_volume_is_refused_until_the_first_is_gone() {
    let mut cluster = Cluster::new(2, 1);
    cluster.write_all();
    let config = cluster.world.client_config(7, 1, &[0, 1]);
    cluster.world.start_client(3, config.clone());
    cluster.world.pass(SOON);
    assert_eq!(cluster.client_state(3), failed(0, Reason::VolumeInUse));
    cluster.read_all();
    assert_eq!(cluster.failures(), []);

    let now = cluster.world.now;
    cluster.world.client(2).client.detach(now);
    cluster.world.pump(2);
    cluster.wait("detach", |it| it.client_state(2) == ClientState::Detached);
    assert_eq!(cluster.server_pages(0) + cluster.server_pages(1), 0);
    cluster.world.start_client(3, config);
    cluster.wait("attach", |it| it.client_state(3) == ClientState::Active);
}

/// Links with 10 ms of delay cause no retransmissions (H9).
#[test]
fn a_long_way_costs_no_retransmission() {
    let mut cluster = Cluster::new(3, 2);
    cluster.write_all();
    cluster.world.wire.quality.delay = (10 * MS, 10 * MS);
    // The first messages are sent again until the client knows the round trip.
    cluster.write_all();
    let before = cluster.world.client(3).client.counters();
    cluster.world.depth = 8;
    cluster.world.works_until = cluster.world.now + 2000 * MS;
    cluster.wait("the requests", |it| {
        it.world.now > it.world.works_until && it.is_idle()
    });
    let after = cluster.world.client(3).client.counters();
    assert!(after.reads + after.writes > before.reads + before.writes + 500);
    assert_eq!(after.retransmissions, before.retransmissions);
    assert_eq!((after.silences, after.failed), (0, 0));
}

/// A read whose steered buffer the NIC refuses asks anew for its page, at once, and takes it in another
/// buffer.
#[test]
fn a_page_whose_buffer_is_refused_comes_in_another() {
    let mut cluster = Cluster::new(2, 2);
    cluster.write_all();
    for block in 0..BLOCKS {
        let now = cluster.world.now;
        cluster.world.read(2, block);
        cluster.world.client(2).refuse_buffers(now);
        cluster.world.pump(2);
        cluster.wait("the page", Cluster::is_idle);
        assert!(cluster.world.now <= now + 2 * MS);
    }
    assert_eq!(cluster.failures(), []);
    cluster.world.client(2).assert_quiet();
}

/// Packets that come twice are only counted.
#[test]
fn what_comes_twice_counts_once() {
    let mut cluster = Cluster::new(2, 2);
    cluster.world.wire.quality.doubled = 1000;
    cluster.write_all();
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
    assert!(cluster.world.client(2).client.counters().stale_answers >= 3 * BLOCKS);
    assert!(cluster.world.server(0).server.counters().stale_writes >= BLOCKS);
}
