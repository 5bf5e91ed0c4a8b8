//! Datagrams of upper modules on the real NIC: driver core and device process, without a VM (H1,
//! H3, H6, H8). Each test has a device of its own in this process, with two nodes.

mod cluster;

use std::collections::BTreeMap;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use qnic_abi::counters::CounterSource;
use qnic_abi::{uapi, NodeId};
use qnic_device::NetworkSettings;
use qnic_host::datagram::{
    Address, Binding, Buffer, Data, Handle, Header, Message, Outgoing, Port, PortConfig, Sent,
    Upper,
};
use qnic_host::{DeviceMemory, HostNode, HostPlatform};

use cluster::{bad_links, Cluster};

const SOON: Duration = Duration::from_secs(30);

const CONFIG: PortConfig = PortConfig {
    receives: 64,
    steered: 16,
    messages: 64,
};

/// Two nodes.
struct Nodes(Cluster);

impl Nodes {
    fn new(network: Option<NetworkSettings>) -> Self {
        Nodes(Cluster::new(2, network))
    }

    fn counters(&self, node: usize, source: CounterSource) -> BTreeMap<String, u64> {
        uapi::Counters::read(source, |call| self.0.nodes[node].counters(call)).unwrap()
    }

    /// A module that notes what it receives.
    fn module(&self, node: usize, port: u16) -> Module {
        self.module_of(node, port, |_, _| {})
    }

    fn module_of(
        &self,
        node: usize,
        port: u16,
        answer: impl Fn(&Port<HostPlatform>, &Message<HostPlatform>) + Send + Sync + 'static,
    ) -> Module {
        let (sender, told) = channel();
        let upper = Arc::new(Notes {
            sender: Mutex::new(sender),
            answer: Box::new(answer),
        });
        let binding = self.0.nodes[node].bind_datagrams(port, &CONFIG, upper);
        let binding = binding.unwrap();
        binding.fill().unwrap();
        binding.wait_posted();
        Module {
            node: self.0.nodes[node].clone(),
            port: binding,
            told,
        }
    }
}

enum Told {
    Received(Message<HostPlatform>),
    Sent(Sent<HostPlatform>),
    Withdrawn(Handle),
}

type Answer = Box<dyn Fn(&Port<HostPlatform>, &Message<HostPlatform>) + Send + Sync>;

struct Notes {
    sender: Mutex<Sender<Told>>,
    answer: Answer,
}

impl Notes {
    fn note(&self, told: Told) {
        // A test that has ended listens no more.
        let _ = self.sender.lock().unwrap().send(told);
    }
}

impl Upper<HostPlatform> for Notes {
    fn received(&self, port: &Port<HostPlatform>, message: Message<HostPlatform>) {
        (self.answer)(port, &message);
        self.note(Told::Received(message));
    }

    fn sent(&self, _: &Port<HostPlatform>, sent: Sent<HostPlatform>) {
        self.note(Told::Sent(sent));
    }

    fn withdrawn(&self, _: &Port<HostPlatform>, handle: Handle, _: Buffer<HostPlatform>) {
        self.note(Told::Withdrawn(handle));
    }
}

struct Module {
    node: HostNode,
    port: Binding<HostPlatform>,
    told: Receiver<Told>,
}

impl Module {
    fn buffer(&self, bytes: &[u8]) -> Buffer<HostPlatform> {
        let page = self.node.new_page().unwrap();
        page.write_bytes(0, bytes);
        Buffer::new(page)
    }

    fn data(&self, bytes: &[u8]) -> Data<HostPlatform> {
        let (front, back) = bytes.split_at(bytes.len().min(4096));
        let second = (!back.is_empty()).then(|| self.buffer(back));
        Data::new(self.buffer(front), second, bytes.len()).unwrap()
    }

    fn send(&self, to: Address, header: &[u8], bytes: &[u8], token: u64) {
        let message = Outgoing {
            header: Header::new(header).unwrap(),
            data: self.data(bytes),
            target: None,
            token,
        };
        self.port.send(&[to], message).unwrap();
    }

    fn received(&self) -> Message<HostPlatform> {
        loop {
            if let Told::Received(message) = self.told.recv_timeout(SOON).unwrap() {
                return message;
            }
        }
    }

    fn sent(&self) -> Sent<HostPlatform> {
        loop {
            if let Told::Sent(sent) = self.told.recv_timeout(SOON).unwrap() {
                return sent;
            }
        }
    }
}

fn at(node: u16, port: u16) -> Address {
    let node = NodeId(node);
    Address { node, port }
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    let byte =
        |index: usize| (index.wrapping_mul(131) ^ (index >> 8) ^ seed.wrapping_mul(29)) as u8;
    (0..length).map(byte).collect()
}

fn bytes_of(message: &Message<HostPlatform>) -> Vec<u8> {
    let mut bytes = vec![0; message.data.len()];
    message.data.read(0, &mut bytes);
    bytes
}

#[test]
fn messages_of_one_and_two_pages_arrive_without_a_copy() {
    let cluster = Nodes::new(None);
    let (here, there) = (cluster.module(0, 1), cluster.module(1, 1));
    for round in 0..200 {
        for length in [1, 40, 4096, 4097, 8192] {
            let data = bytes(round, length);
            here.send(at(1, 1), &data[..length.min(40)], &data, round as u64);
            let message = there.received();
            assert_eq!(message.from, at(0, 1));
            assert_eq!(message.header.as_bytes(), &data[..length.min(40)]);
            assert_eq!(bytes_of(&message), data);
            let sent = here.sent();
            assert_eq!((sent.token, sent.failed), (round as u64, 0));
        }
    }
    let counters = cluster.counters(1, CounterSource::Datagrams);
    assert_eq!(counters["messages_received"], 1000);
    assert_eq!(counters["bytes_copied"], 0);
    assert_eq!(counters["posts_refused"], 0);
    assert_eq!(
        cluster.counters(1, CounterSource::Nic)["datagrams_dropped"],
        0
    );
}

/// Node 0 has a server and a client of the same service at the same time, as a node that pages to
/// other nodes and serves them (H1). A request carries the handle of the buffer that waits.
#[test]
fn pages_come_in_where_they_are_waited_for_while_a_node_is_client_and_server() {
    const PAGES: usize = 500;
    let cluster = Nodes::new(None);
    let serve = |node: usize| {
        let pages: Arc<OnceLock<HostNode>> = Arc::default();
        pages.set(cluster.0.nodes[node].clone()).unwrap();
        cluster.module_of(node, 2, move |port, request| {
            let mut words = [0; 16];
            words.copy_from_slice(request.header.as_bytes());
            let [page, handle] = [0, 8].map(|at| {
                let word = words[at..at + 8].try_into().unwrap();
                u64::from_le_bytes(word)
            });
            let memory = pages.get().unwrap().new_page().unwrap();
            memory.write_bytes(0, &bytes(page as usize, 4096));
            let answer = Outgoing {
                header: request.header,
                data: Data::whole(Buffer::new(memory)),
                target: Some(Handle(handle)),
                token: 0,
            };
            port.send(&[request.from], answer).unwrap();
        })
    };
    let (_server_a, _server_b) = (serve(0), serve(1));
    let clients = [cluster.module(0, 1), cluster.module(1, 1)];
    std::thread::scope(|scope| {
        for (node, client) in clients.into_iter().enumerate() {
            let server = at(1 - node as u16, 2);
            scope.spawn(move || {
                for page in 0..PAGES {
                    let memory = client.node.new_page().unwrap();
                    let waiting = Buffer::new(memory.part(0, 4096));
                    let handle = client.port.expect(waiting, None).unwrap();
                    let mut header = [0; 16];
                    header[..8].copy_from_slice(&(page as u64).to_le_bytes());
                    header[8..].copy_from_slice(&handle.0.to_le_bytes());
                    let request = Port::plain(Header::new(&header).unwrap(), 1);
                    client.port.send(&[server], request).unwrap();
                    let answer = client.received();
                    assert_eq!(answer.steered, Some(handle));
                    let mut there = [0; 4096];
                    memory.read_bytes(0, &mut there);
                    assert_eq!(there[..], bytes(page, 4096));
                }
            });
        }
    });
    for node in 0..2 {
        let counters = cluster.counters(node, CounterSource::Datagrams);
        assert_eq!(counters["pages_steered"], PAGES as u64);
        assert_eq!(counters["bytes_copied"], 0, "page-ins of 4 KiB");
    }
}

#[test]
fn a_steered_buffer_without_an_answer_is_withdrawn() {
    let cluster = Nodes::new(None);
    let module = cluster.module(0, 1);
    let handle = module.port.expect(module.buffer(&[]), None).unwrap();
    module.port.withdraw(handle);
    let told = module.told.recv_timeout(SOON).unwrap();
    assert!(matches!(told, Told::Withdrawn(withdrawn) if withdrawn == handle));
}

#[test]
fn messages_to_absent_nodes_and_ports_cost_nothing() {
    let cluster = Nodes::new(None);
    let module = cluster.module(0, 1);
    module.send(at(77, 1), b"", &[1], 5);
    let sent = module.sent();
    assert_eq!((sent.token, sent.failed), (5, 1));
    // A port that is not bound is no error at the sender.
    module.send(at(1, 9), b"", &[1], 6);
    assert_eq!(module.sent().failed, 0);
}

/// On links that lose, double and reorder, messages arrive whole, and no buffer is lost: many
/// times more messages come than there are buffers, and the port goes on working.
#[test]
fn what_arrives_over_bad_links_is_whole() {
    let cluster = Nodes::new(bad_links(10.0, 20_000));
    let (here, there) = (cluster.module(0, 1), cluster.module(1, 1));
    let mut arrived = 0;
    for round in 0..2000usize {
        let length = [4096, 8192, 100][round % 3];
        here.send(
            at(1, 1),
            &(round as u64).to_le_bytes(),
            &bytes(round, length),
            0,
        );
        let _ = here.sent();
        while let Ok(told) = there.told.try_recv() {
            let Told::Received(message) = told else {
                continue;
            };
            let round = message.header.as_bytes().try_into().unwrap();
            let round = u64::from_le_bytes(round) as usize;
            assert_eq!(
                bytes_of(&message),
                bytes(round, [4096, 8192, 100][round % 3])
            );
            arrived += 1;
        }
    }
    assert!(arrived > 1000, "{arrived} of 2000");
    // It still receives; each try may be lost.
    let again = (0..100).any(|_| {
        here.send(at(1, 1), b"again", &[1], 0);
        let told = there.told.recv_timeout(Duration::from_millis(200));
        matches!(told, Ok(Told::Received(_)))
    });
    assert!(again);
    assert_eq!(
        cluster.counters(1, CounterSource::Datagrams)["completions_unknown"],
        0
    );
}

/// A module that ends while messages are under way leaves nothing with the NIC; another module
/// can have its port.
#[test]
fn ports_come_and_go_under_load() {
    let cluster = Nodes::new(None);
    let here = cluster.module(0, 1);
    for round in 0..50 {
        let there = cluster.module(1, 1);
        for token in 0..20 {
            here.send(at(1, 1), b"", &bytes(round, 8192), token);
        }
        let _ = there.received();
        drop(there);
        for _ in 0..20 {
            assert_eq!(here.sent().failed, 0);
        }
    }
    assert_eq!(
        cluster.counters(1, CounterSource::Datagrams)["completions_unknown"],
        0
    );
}

#[test]
fn the_end_of_the_device_gives_everything_back() {
    let mut cluster = Nodes::new(None);
    let module = cluster.module(0, 1);
    let handle = module.port.expect(module.buffer(&[]), None).unwrap();
    cluster.0.device = None;
    let told = module.told.recv_timeout(SOON).unwrap();
    assert!(matches!(told, Told::Withdrawn(withdrawn) if withdrawn == handle));
}
