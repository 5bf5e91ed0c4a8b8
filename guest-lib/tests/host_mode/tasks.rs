//! Waiting in async tasks (N17).

use std::sync::Arc;
use std::time::Duration;

use qnic::{AsyncEndpoint, ChannelOptions, Error, NodeId, OneShot, Port, Signal};
use tokio::task::{spawn_blocking, JoinSet};
use tokio::time::timeout;

use crate::cluster::{id, pair, Cluster, Peer, ONE, SOON};

/// Several tasks share the one descriptor, and none loses its notifications to
/// another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_wait_on_one_endpoint() {
    const TASKS: u32 = 8;
    const ROUNDS: u32 = 200;
    let pair = pair(4096);
    let (a, b, remote) = (pair.a, pair.b, pair.remote);
    let one_shot = |round| OneShot::new(5000 + round).unwrap();
    let waits = Arc::new(AsyncEndpoint::new(&b.endpoint).unwrap());
    assert_error!(AsyncEndpoint::new(&b.endpoint), Error::Polled);
    let mut tasks = JoinSet::new();
    for task in 1..=TASKS {
        let waits = waits.clone();
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                waits.take(id(task)).await.unwrap();
            }
        });
    }
    tasks.spawn(async move {
        for round in 0..ROUNDS {
            let next = waits.next().await.unwrap();
            assert_eq!(next, Signal::OneShot(one_shot(round)));
        }
    });
    tasks.spawn_blocking(move || {
        for round in 0..ROUNDS {
            for task in 1..=TASKS {
                a.signal(&remote, id(task));
            }
            a.signal(&remote, one_shot(round));
            a.endpoint.flush().unwrap();
        }
    });
    while let Some(task) = timeout(SOON, tasks.join_next()).await.unwrap() {
        task.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_dropped_takes_nothing() {
    let pair = pair(4096);
    let waits = AsyncEndpoint::new(&pair.b.endpoint).unwrap();
    let short = Duration::from_millis(20);
    assert!(timeout(short, waits.take(ONE)).await.is_err());
    pair.a.signal(&pair.remote, ONE);
    let pending = timeout(SOON, waits.wait(ONE)).await.unwrap();
    assert_eq!(pending.unwrap(), 1);
    timeout(SOON, waits.take(ONE)).await.unwrap().unwrap();
    assert_eq!(waits.endpoint().notification(ONE).pending(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_receives_messages() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| cluster.nic(node).register(Port(1)).unwrap());
    let name = qnic::SegmentName(3);
    let mut receiver = b.receiver(name, &ChannelOptions::new(4, 64, ONE)).unwrap();
    let waits = AsyncEndpoint::new(&b).unwrap();
    let sending = spawn_blocking(move || {
        let mut sender = a.sender(NodeId(1), Port(1), name, ONE, SOON).unwrap();
        for number in 0..500u64 {
            sender.send(&number.to_le_bytes(), Some(SOON)).unwrap();
        }
        sender.close().unwrap();
    });
    for number in 0..500u64 {
        let message = timeout(SOON, waits.recv(&mut receiver)).await.unwrap();
        assert_eq!(message.unwrap().to_vec(), number.to_le_bytes());
    }
    let end = timeout(SOON, waits.recv(&mut receiver)).await.unwrap();
    assert_error!(end, Error::ChannelClosed);
    sending.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_learn_that_the_device_is_gone() {
    let mut cluster = Cluster::new(1);
    let peer = Peer::new(&cluster.nic(0), 1, 4096);
    let waits = AsyncEndpoint::new(&peer.endpoint).unwrap();
    let gone = async {
        cluster.kill_device();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = timeout(SOON, waits.wait(ONE)) => {
            assert_error!(ended.unwrap(), Error::DeviceGone);
        }
        () = gone => {}
    }
}
