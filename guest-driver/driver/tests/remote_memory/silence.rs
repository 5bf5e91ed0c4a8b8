//! Clients and servers that stand still or are cut off; when a server takes its memory back, and what
//! becomes of the volume then (H9).

use qnic_driver::remote_memory::{ClientState, Failure, Refusal, ServerState};

use crate::cluster::Cluster;
use crate::page::Page;
use crate::wire::MS;
use crate::world::{BLOCKS, LEASE, REQUEST_TIMEOUT, SERVER_TIMEOUT};

const SECOND: u64 = 1000 * MS;
/// Longer than any silence of these stories.
const LONG_LEASE: u64 = 600 * SECOND;

/// Two servers with this lease, and a client that has written all of its volume to both.
fn written(lease: u64) -> Cluster {
    let mut cluster = Cluster::detached(2);
    for server in 0..2 {
        let mut config = cluster.world.server_config();
        config.lease = lease;
        cluster.world.start_server_with(server, config);
    }
    cluster.attach(2);
    cluster.write_all();
    cluster
}

/// A client that stands still with requests under way finds all of its data again, and no request has
/// failed: not by a lease, and not by the time limit of requests.
#[test]
fn a_client_that_stood_still_has_lost_nothing() {
    for pause in [20 * SECOND, 60 * SECOND] {
        let mut cluster = written(LONG_LEASE);
        for block in 0..4 {
            cluster.world.write(2, block);
            cluster.world.read(2, 4 + block);
        }
        cluster.world.pause(2, pause);
        cluster.world.pass(pause);
        cluster.wait("the requests", Cluster::is_idle);
        cluster.read_all();
        cluster.write_all();
        assert_eq!(cluster.failures(), [], "{pause}");
        let counters = cluster.world.client(2).client.counters();
        assert_eq!((counters.pauses, counters.lost_servers), (1, 0));
    }
}

/// A server that stands still for longer than the lease takes that for no silence of its clients, also
/// if nothing of theirs has arrived when it goes on.
#[test]
fn a_server_that_stood_still_keeps_its_clients() {
    for is_cut in [false, true] {
        let mut cluster = written(15 * SECOND);
        if is_cut {
            cluster.world.wire.cut(0, 2);
        }
        cluster.world.pause(0, 40 * SECOND);
        cluster.world.pass(42 * SECOND);
        cluster.world.wire.heal();
        cluster.wait("the server", |it| it.server_state(0) == ServerState::Live);
        assert_eq!(cluster.world.server(0).server.counters().expired, 0);
        cluster.read_all();
        assert_eq!(cluster.failures(), [], "cut: {is_cut}");
    }
}

/// A cut within the lease costs at most the requests under way: all that was written is there.
#[test]
fn a_cut_within_the_lease_loses_no_block() {
    for cut in [17 * SECOND, 40 * SECOND] {
        let mut cluster = written(LONG_LEASE);
        cluster.world.wire.cut(0, 2);
        cluster.world.wire.cut(1, 2);
        cluster.world.pass(cut);
        cluster.world.wire.heal();
        cluster.wait("the servers", |it| {
            [0, 1].map(|server| it.server_state(server)) == [ServerState::Live; 2]
        });
        cluster.read_all();
        assert_eq!(cluster.failures(), [], "{cut}");
    }
}

/// After a silence that is longer than the lease all servers have taken their memory back. Then the
/// volume ends as a whole: no request succeeds any more, of no block, and all say why.
#[test]
fn a_volume_is_taken_back_as_a_whole() {
    let mut cluster = written(LEASE);
    cluster.world.wire.cut(0, 2);
    cluster.world.wire.cut(1, 2);
    cluster.world.pass(LEASE + SERVER_TIMEOUT);
    assert_eq!((cluster.server_pages(0), cluster.server_pages(1)), (0, 0));
    // One block is read while the wire returns, others are written.
    cluster.world.read(2, 0);
    (1..5).for_each(|block| cluster.world.write(2, block));
    cluster.world.wire.heal();
    cluster.wait("the errors", Cluster::is_idle);
    let failures = cluster.failures();
    assert_eq!(failures, [Failure::TakenBack; 5]);
    cluster.wait("the end", |it| it.client_state(2) == ClientState::TakenBack);
    let now = cluster.world.now;
    let client = &mut cluster.world.client(2).client;
    assert!(client.is_taken_back());
    for block in 0..BLOCKS {
        assert_eq!(client.read(now, 1, block, 0), Err(Refusal::TakenBack));
        let written = client.write(now, 1, block, Page::new(1));
        assert_eq!(written.unwrap_err().1, Refusal::TakenBack);
    }
    cluster.world.pass(4 * REQUEST_TIMEOUT);
    assert_eq!((cluster.server_pages(0), cluster.server_pages(1)), (0, 0));
    // It can be attached anew, and is empty.
    cluster.attach(2);
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
}

/// If another server still has every block, the volume goes on, and the copies are made anew.
#[test]
fn a_lease_that_ends_costs_no_volume_that_has_copies() {
    let mut cluster = written(LEASE);
    cluster.world.wire.cut(1, 2);
    cluster.world.pass(2 * LEASE);
    assert_eq!(cluster.world.server(1).server.counters().expired, 1);
    cluster.world.wire.heal();
    cluster.wait("repair", |it| {
        it.is_repaired() && it.server_pages(1) == BLOCKS as usize
    });
    assert_eq!(cluster.client_state(2), ClientState::Active);
    cluster.read_all();
    cluster.write_all();
    assert_eq!(cluster.failures(), []);
}

/// Servers that end at once tell their clients, and the volume ends as a whole.
#[test]
fn servers_that_end_at_once_end_the_volume() {
    let mut cluster = written(LONG_LEASE);
    for server in 0..2 {
        let now = cluster.world.now;
        cluster.world.server(server).server.take_back(now);
        cluster.world.pump(server);
        assert_eq!(cluster.server_pages(server), 0);
        assert!(cluster.world.server(server).server.has_left());
    }
    cluster.wait("the end", |it| it.client_state(2) == ClientState::TakenBack);
}

/// The pages of a client that was killed stay until its lease is over, and then its volume can be attached by
/// another node: empty.
#[test]
fn a_killed_client_loses_its_pages_after_its_lease() {
    let mut cluster = Cluster::new(2, 2);
    cluster.write_all();
    cluster.world.kill(2);
    let begin = cluster.world.now;
    let config = cluster.world.client_config(7, 2, &[0, 1]);
    let attached = |cluster: &mut Cluster| match cluster.client_state(3) {
        ClientState::Failed(_) => {
            cluster.world.start_client(3, config.clone());
            false
        }
        state => state == ClientState::Active,
    };
    cluster.world.start_client(3, config.clone());
    cluster.wait("attach", attached);
    assert!(cluster.world.now >= begin + LEASE - 100 * MS);
    assert_eq!(cluster.server_pages(0), 0);
    assert_eq!(cluster.world.server(0).server.counters().expired, 1);
}

/// A client whose port has another owner is known to be dead: its pages are free long before its lease
/// is over. A late message of an earlier owner harms no present one.
#[test]
fn a_client_that_is_known_to_be_dead_keeps_no_memory() {
    let mut cluster = written(LONG_LEASE);
    cluster.world.kill(2);
    let begin = cluster.world.now;
    cluster.begin_to_attach(2);
    cluster.wait("attach", |it| it.client_state(2) == ClientState::Active);
    assert!(cluster.world.now < begin + 2 * SECOND);
    assert_eq!((cluster.server_pages(0), cluster.server_pages(1)), (0, 0));
    cluster.write_all();
    let late = cluster.world.attach_of_another_life(2, 0);
    (0..5).for_each(|_| cluster.world.send(late.clone()));
    cluster.world.pass(SECOND);
    cluster.read_all();
    assert_eq!(cluster.failures(), []);
    assert_eq!(cluster.world.client(2).client.counters().lost_servers, 0);
}
