//! Waiting in async tasks (N17).

use std::sync::Arc;
use std::time::Duration;

use qnic::{AsyncEndpoint, ChannelOptions, Error, NodeId, NotificationId, OneShot, Port, Signal};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::{pair, Cluster, Peer, ONE, SOON};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn id(number: u32) -> NotificationId {
    NotificationId::new(number).unwrap()
}

/// Several tasks share the one descriptor, and none loses its notifications to
/// another.
#[test]
fn many_tasks_wait_on_one_endpoint() {
    const TASKS: u32 = 8;
    const ROUNDS: u32 = 200;
    let pair = pair(4096);
    let runtime = runtime();
    let _context = runtime.enter();
    let waits = Arc::new(AsyncEndpoint::new(&pair.b.endpoint).unwrap());
    assert_error!(AsyncEndpoint::new(&pair.b.endpoint), Error::Polled);
    let mut tasks = JoinSet::new();
    for task in 1..=TASKS {
        let waits = waits.clone();
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                waits.take(id(task)).await.unwrap();
            }
        });
    }
    let queue = waits.clone();
    tasks.spawn(async move {
        for round in 0..ROUNDS {
            let next = queue.next().await.unwrap();
            assert_eq!(next, Signal::OneShot(OneShot::new(5000 + round).unwrap()));
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                for task in 1..=TASKS {
                    pair.a.signal(&pair.remote, id(task));
                }
                pair.a
                    .signal(&pair.remote, OneShot::new(5000 + round).unwrap());
                pair.a.endpoint.flush().unwrap();
            }
        });
        runtime.block_on(async {
            while let Some(task) = timeout(SOON, tasks.join_next()).await.unwrap() {
                task.unwrap();
            }
        });
    });
}

#[test]
fn a_wait_that_is_dropped_takes_nothing() {
    let pair = pair(4096);
    let runtime = runtime();
    let _context = runtime.enter();
    let waits = AsyncEndpoint::new(&pair.b.endpoint).unwrap();
    runtime.block_on(async {
        let short = Duration::from_millis(20);
        assert!(timeout(short, waits.take(ONE)).await.is_err());
        pair.a.signal(&pair.remote, ONE);
        let pending = timeout(SOON, waits.wait(ONE)).await.unwrap();
        assert_eq!(pending.unwrap(), 1);
        timeout(SOON, waits.take(ONE)).await.unwrap().unwrap();
    });
    assert_eq!(waits.endpoint().notification(ONE).pending(), 0);
}

#[test]
fn a_task_receives_messages() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| cluster.nic(node).register(Port(1)).unwrap());
    let name = qnic::SegmentName(3);
    let mut receiver = b.receiver(name, &ChannelOptions::new(4, 64, ONE)).unwrap();
    let runtime = runtime();
    let _context = runtime.enter();
    let waits = AsyncEndpoint::new(&b).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = a.sender(NodeId(1), Port(1), name, ONE, SOON).unwrap();
            for number in 0..500u64 {
                sender.send(&number.to_le_bytes(), Some(SOON)).unwrap();
            }
            sender.close().unwrap();
        });
        runtime.block_on(async {
            for number in 0..500u64 {
                let message = timeout(SOON, waits.recv(&mut receiver)).await.unwrap();
                assert_eq!(message.unwrap().to_vec(), number.to_le_bytes());
            }
            let end = timeout(SOON, waits.recv(&mut receiver)).await.unwrap();
            assert_error!(end, Error::ChannelClosed);
        });
    });
}

#[test]
fn tasks_learn_that_the_device_is_gone() {
    let mut cluster = Cluster::new(1);
    let peer = Peer::new(&cluster.nic(0), 1, 4096);
    let runtime = runtime();
    let _context = runtime.enter();
    let waits = AsyncEndpoint::new(&peer.endpoint).unwrap();
    runtime.block_on(async {
        let wait = waits.wait(ONE);
        let gone = async {
            cluster.kill_device();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = timeout(SOON, wait) => {
                assert_error!(ended.unwrap(), Error::DeviceGone);
            }
            () = gone => {}
        }
    });
}
