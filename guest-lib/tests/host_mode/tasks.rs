//! Waiting in async tasks (N17).

use std::sync::Arc;
use std::time::Duration;

use qnic::group::Application;
use qnic::message::{Destination, Pattern, Source, Tag};
use qnic::{AsyncEndpoint, ChannelOptions, Error, NodeId, OneShot, Port, Receiver, Sender, Signal};
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
            a.endpoint.flush().wait().unwrap();
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

/// A wait that timed out, and is dropped, takes nothing: the next one gets all, in its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wait_can_time_out_and_be_repeated() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Peer::new(&cluster.nic(node), 1, 4096));
    let remote = a.import(&b);
    let waits = AsyncEndpoint::new(&b.endpoint).unwrap();
    let (name, sent) = (qnic::SegmentName(3), id(2));
    let options = ChannelOptions::new(4, 64, sent);
    let mut receiver = Receiver::open(&b.endpoint, name, &options).unwrap();
    let connected = Sender::connect(&a.endpoint, (NodeId(1), Port(1), name), id(3), SOON);
    let mut sender = connected.unwrap();
    for short in [0, 1, 20].map(Duration::from_millis) {
        assert!(timeout(short, waits.wait(ONE)).await.is_err());
        assert!(timeout(short, waits.take(ONE)).await.is_err());
        assert!(timeout(short, waits.next()).await.is_err());
        assert!(timeout(short, waits.recv(&mut receiver)).await.is_err());
    }
    let one_shot = Signal::OneShot(OneShot::new(5000).unwrap());
    a.signal(&remote, ONE);
    a.signal(&remote, one_shot);
    for number in 0..3u8 {
        sender.send(&[number], Some(SOON)).unwrap();
    }
    timeout(SOON, waits.take(ONE)).await.unwrap().unwrap();
    let next = timeout(SOON, waits.next()).await.unwrap();
    assert_eq!(next.unwrap(), one_shot);
    for number in 0..3u8 {
        let message = timeout(SOON, waits.recv(&mut receiver)).await.unwrap();
        assert_eq!(message.unwrap().to_vec(), [number]);
    }
    assert!(timeout(Duration::ZERO, waits.take(ONE)).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_receives_messages() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| cluster.nic(node).register(Port(1)).unwrap());
    let name = qnic::SegmentName(3);
    let mut receiver = Receiver::open(&b, name, &ChannelOptions::new(4, 64, ONE)).unwrap();
    let waits = AsyncEndpoint::new(&b).unwrap();
    let sending = spawn_blocking(move || {
        let mut sender = Sender::connect(&a, (NodeId(1), Port(1), name), ONE, SOON).unwrap();
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

/// Tasks wait for messages, each for its own, beside one that waits for a notification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_wait_for_messages() {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 50;
    let pair = pair(4096 * TASKS as usize);
    let (a, b, remote) = (pair.a, Arc::new(pair.b), pair.remote);
    let waits = Arc::new(AsyncEndpoint::new(&b.endpoint).unwrap());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (waits, b) = (waits.clone(), b.clone());
        tasks.spawn(async move {
            let pattern = Pattern::tagged(Source::Any, Tag(task));
            for round in 0..ROUNDS {
                let part = b.segment.part(4096 * task as usize, 4096);
                let mut request = b.endpoint.receive(&pattern, part).post().unwrap();
                let completion = waits.completion(&mut request).await.unwrap();
                assert_eq!(completion.immediate, round);
            }
        });
    }
    let notified = waits.clone();
    tasks.spawn(async move { notified.take(ONE).await.unwrap() });
    let (node, port) = (b.endpoint.node(), b.endpoint.port());
    tasks.spawn_blocking(move || {
        for round in 0..ROUNDS {
            for task in 0..TASKS {
                let to = Destination::tagged(node, port, Tag(task)).immediate(round);
                a.endpoint
                    .send(&to, b"message")
                    .timeout(SOON)
                    .wait()
                    .unwrap();
            }
        }
        a.signal(&remote, ONE);
    });
    while let Some(task) = timeout(SOON, tasks.join_next()).await.unwrap() {
        task.unwrap();
    }
    let part = b.segment.part(0, 8192);
    let mut many = b
        .endpoint
        .receive(&Pattern::untagged(Source::Any), part)
        .many();
    let many = many.as_mut().unwrap();
    let short = Duration::from_millis(20);
    assert!(timeout(short, waits.next_message(many)).await.is_err());
    many.cancel().unwrap();
    let ended = timeout(SOON, waits.next_message(many)).await.unwrap();
    assert_eq!(ended.unwrap(), None);
}

/// Tasks of one endpoint each wait for their own call of a group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_group_end_in_tasks() {
    let cluster = Cluster::new(2);
    let join = |node: u16| {
        let endpoint = cluster.nic(node).register(Port(5)).unwrap();
        spawn_blocking(move || {
            let application = Application::join(&endpoint, "tasks", node.into(), 2, SOON);
            let waits = AsyncEndpoint::new(&endpoint).unwrap();
            let group = application.unwrap();
            tokio::runtime::Handle::current().block_on(async {
                let mut calls = [0; 4].map(|_| group.barrier().timeout(SOON).post().unwrap());
                for call in calls.iter_mut().rev() {
                    waits.call(call).await.unwrap();
                }
            });
        })
    };
    for task in [join(0), join(1)] {
        timeout(SOON, task).await.unwrap().unwrap();
    }
}

/// Tasks probe and claim; a wait that is dropped takes no message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_probe_and_claim_messages() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Peer::new(&cluster.nic(node), 1, 4096));
    let waits = AsyncEndpoint::new(&b.endpoint).unwrap();
    let any = Pattern::any_tag(Source::Any);
    let short = Duration::from_millis(20);
    assert!(timeout(short, waits.probe(&any)).await.is_err());
    let mut claim = b.endpoint.probe(&any).post_claim().unwrap();
    assert!(timeout(short, waits.claimed(&mut claim)).await.is_err());
    let to = Destination::tagged(NodeId(1), Port(1), Tag(5));
    for number in [1, 2] {
        let sent = a.endpoint.send(&to.immediate(number), b"claimed").post();
        drop(sent.unwrap());
    }
    let claimed = timeout(SOON, waits.claimed(&mut claim)).await.unwrap();
    assert_eq!(claimed.unwrap().envelope().immediate, 1);
    let found = timeout(SOON, waits.probe(&any)).await.unwrap().unwrap();
    assert_eq!((found.immediate, found.length), (2, 7));
    let mut own = a.endpoint.probe(&any).post_claim().unwrap();
    assert_error!(waits.claimed(&mut own).await, Error::ForeignRequest);
}

/// A task that probes waits while as many claims wait as may, and goes on when one is given up (Q12).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_probes_when_there_is_room() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Peer::new(&cluster.nic(node), 1, 4096));
    let waits = AsyncEndpoint::new(&b.endpoint).unwrap();
    let [wanted, other] = [5, 6].map(|tag| Pattern::tagged(Source::Any, Tag(tag)));
    let claim = || b.endpoint.probe(&other).post_claim().ok();
    let mut claims: Vec<_> = std::iter::from_fn(claim).collect();
    let short = Duration::from_millis(20);
    assert!(timeout(short, waits.probe(&wanted)).await.is_err());
    let to = Destination::tagged(NodeId(1), Port(1), Tag(5));
    let make_room = async {
        drop(claims.pop());
        drop(a.endpoint.send(&to, b"found").post().unwrap());
    };
    let both = async { tokio::join!(waits.probe(&wanted), make_room) };
    let (found, ()) = timeout(SOON, both).await.unwrap();
    assert_eq!(found.unwrap().length, 5);
}
