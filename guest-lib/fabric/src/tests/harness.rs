//! A device with two NICs, and an endpoint with its queues on each.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic::{Nic, NodeId};
use qnic_device::{ByteSize, Config, Device, MetricsSettings, NetworkSettings, NicSettings};
use qnic_links::units::{Probability, Span};
use qnic_links::Impairments;
use tempfile::TempDir;

use crate::address::BYTES;
use crate::info::select::{select, Named};
use crate::pointers::test::{context, input, output, room};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{
    self, AvAttr, CqAttr, CqEntry, CqErrEntry, EqAttr, FidAv, FidCq, FidDomain, FidEp, FidEq,
    FidFabric, Head, Info,
};
use crate::{domain, fabric};

/// Long enough for anything that will happen at all.
const SOON: Duration = Duration::from_secs(60);

/// Name of the socket on which links are changed.
const CONTROL: &str = "control.sock";

/// What a queue is opened with.
pub(super) const TAGGED: CqAttr = CqAttr {
    size: 100,
    flags: 0,
    format: sys::CQ_FORMAT_TAGGED,
    wait_obj: sys::WAIT_FD,
    signaling_vector: 0,
    wait_cond: 0,
    wait_set: std::ptr::null_mut(),
};

const AV: AvAttr = AvAttr {
    kind: 1,
    rx_ctx_bits: 0,
    count: 2,
    ep_per_node: 0,
    name: In::NULL,
    map_addr: std::ptr::null_mut(),
    flags: 0,
};

/// The structure of an object.
pub(super) fn at<F>(fid: Fid<F>) -> &'static F {
    // SAFETY: tests use objects while these are open.
    unsafe { &*fid.pointer() }
}

/// The same object, as what all are.
pub(super) fn head<F>(fid: Fid<F>) -> Fid<Head> {
    Fid::new(fid.pointer().cast())
}

pub(super) fn close<F>(fid: Fid<F>) -> c_int {
    (at(head(fid)).ops.close)(head(fid))
}

/// What `open` opens.
pub(super) fn opened<F>(open: impl FnOnce(Out<Fid<F>>) -> c_int) -> Fid<F> {
    let mut fid = Fid::new(std::ptr::null_mut());
    assert_eq!(open(output(&mut fid)), 0);
    fid
}

/// A device with NICs for nodes from 0 up, whose sockets are in a folder.
pub(super) fn config(folder: &Path, nodes: u16) -> Config {
    let nics = (0..nodes).map(|node| {
        let socket = socket_in(folder, node);
        NicSettings::new(node.to_string(), NodeId(node), socket, ByteSize::mib(256))
    });
    Config::new(nics.collect())
}

/// The socket of a node.
pub(super) fn socket_in(folder: &Path, node: u16) -> PathBuf {
    folder.join(format!("{node}.sock"))
}

/// A device with NICs for nodes from 0 up.
pub(super) struct Cluster {
    device: Option<Device>,
    directory: TempDir,
}

impl Cluster {
    pub(super) fn new(nodes: u16) -> Self {
        Self::with_network(nodes, None)
    }

    /// The same, on links that lose so much of a hundred frames.
    pub(super) fn lossy(nodes: u16, percent: f64) -> Self {
        let default = Impairments {
            loss: Probability::percent(percent),
            ..Impairments::default()
        };
        let network = NetworkSettings {
            default,
            ..NetworkSettings::default()
        };
        Self::with_network(nodes, Some(network))
    }

    /// The same, on links that can be changed ([`Cluster::net`]); a node is given up after so much silence.
    pub(super) fn on_links(nodes: u16, peer_timeout: Duration) -> Self {
        let network = NetworkSettings {
            peer_timeout: Some(Span::nanoseconds(peer_timeout.as_nanos() as u64)),
            ..NetworkSettings::default()
        };
        Self::with_network(nodes, Some(network))
    }

    /// Changes the links between two nodes, as `cargo qnic net set` does.
    pub(super) fn net(&self, between: [u16; 2], change: &str) {
        let mut control = UnixStream::connect(self.directory.path().join(CONTROL)).unwrap();
        let request = r#"{"cmd":"net_set","links":{"between":"#;
        writeln!(control, r#"{request}{between:?}}},"change":{change}}}"#).unwrap();
        let mut answer = String::new();
        BufReader::new(control).read_line(&mut answer).unwrap();
        assert!(answer.contains("changed"), "{answer}");
    }

    fn with_network(nodes: u16, network: Option<NetworkSettings>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), nodes);
        let control = directory.path().join(CONTROL);
        config.metrics = network.is_some().then(|| MetricsSettings::new(control));
        config.network = network;
        let device = Device::start(&config).unwrap();
        Cluster {
            device: Some(device),
            directory,
        }
    }

    pub(super) fn domain(&self, node: u16) -> (Fid<FidFabric>, Fid<FidDomain>) {
        self.domain_of(node, In::NULL)
    }

    /// A domain as an info describes it.
    pub(super) fn domain_of(&self, node: u16, info: In<Info>) -> (Fid<FidFabric>, Fid<FidDomain>) {
        domain_at(self.socket(node), info)
    }

    /// The socket of a node.
    pub(super) fn socket(&self, node: u16) -> PathBuf {
        socket_in(self.directory.path(), node)
    }
}

/// A domain of the node of a socket, as an info describes it.
pub(super) fn domain_at(socket: PathBuf, info: In<Info>) -> (Fid<FidFabric>, Fid<FidDomain>) {
    let nic = Arc::new(Nic::open_host_with(socket, 96 << 20).unwrap());
    let fabric: Fid<FidFabric> = opened(|to| match fabric::open(to, Context::NULL) {
        Ok(()) => 0,
        Err(error) => -error.0,
    });
    let parent = crate::object::state::<fabric::Fabric, _>(fabric).unwrap();
    let domain = opened(
        |to| match domain::open_on(nic, parent, info, to, Context::NULL) {
            Ok(()) => 0,
            Err(error) => -error.0,
        },
    );
    (fabric, domain)
}

impl Cluster {
    /// Ends the device, and with it all NICs.
    pub(super) fn stop(&mut self) {
        if let Some(device) = self.device.take() {
            device.stop().unwrap();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An endpoint of a node, with one queue for both directions.
pub(super) struct Side {
    pub(super) fabric: Fid<FidFabric>,
    pub(super) domain: Fid<FidDomain>,
    pub(super) cq: Fid<FidCq>,
    pub(super) av: Fid<FidAv>,
    pub(super) events: Fid<FidEq>,
    pub(super) ep: Fid<FidEp>,
    pub(super) name: [u8; BYTES],
}

/// Flags of the binding of a queue for both directions.
pub(super) const BOTH: u64 = sys::SEND | sys::RECV;

impl Side {
    pub(super) fn new(cluster: &Cluster, node: u16, attributes: CqAttr, binding: u64) -> Self {
        let (fabric, domain) = cluster.domain(node);
        Self::on(fabric, domain, attributes, binding)
    }

    /// An endpoint of a program of API 1.4 that asks for FI_MR_BASIC.
    pub(super) fn basic(cluster: &Cluster, node: u16) -> Self {
        let mut offer = select("qnic0", 1 << 16 | 4, Named::default(), None).unwrap();
        offer.domain.mr_mode = sys::MR_BASIC;
        let info = Info {
            domain_attr: &mut offer.domain,
            ..EMPTY
        };
        let (fabric, domain) = cluster.domain_of(node, input(&info));
        Self::on(fabric, domain, TAGGED, BOTH)
    }

    pub(super) fn on(
        fabric: Fid<FidFabric>,
        domain: Fid<FidDomain>,
        attributes: CqAttr,
        binding: u64,
    ) -> Self {
        let ops = at(domain).ops;
        let cq = opened(|to| (ops.cq_open)(domain, input(&attributes), to, context(1)));
        let av = opened(|to| (ops.av_open)(domain, input(&AV), to, Context::NULL));
        let wait = EqAttr {
            size: 0,
            flags: 0,
            wait_obj: sys::WAIT_UNSPEC,
            signaling_vector: 0,
            wait_set: std::ptr::null_mut(),
        };
        let eq_open = at(fabric).ops.eq_open;
        let events = opened(|to| eq_open(fabric, input(&wait), to, Context::NULL));
        let ep = open_endpoint(domain);
        assert_eq!((at(ep).head.ops.bind)(head(ep), head(events), 0), 0);
        assert_eq!((at(ep).head.ops.bind)(head(ep), head(cq), binding), 0);
        assert_eq!((at(ep).head.ops.bind)(head(ep), head(av), 0), 0);
        let enable =
            |ep: Fid<FidEp>| (at(ep).head.ops.control)(head(ep), sys::CONTROL_ENABLE, Out::NULL);
        assert_eq!(enable(ep), 0);
        assert_eq!(enable(ep), -sys::FI_EOPBADSTATE);
        let mut name = [0; BYTES];
        let mut length = BYTES;
        let getname = at(ep).cm.getname;
        assert_eq!(getname(head(ep), room(&mut name), output(&mut length)), 0);
        Side {
            fabric,
            domain,
            cq,
            av,
            events,
            ep,
            name,
        }
    }

    /// Inserts the address of an endpoint, and returns its number.
    pub(super) fn insert(&self, name: &[u8]) -> u64 {
        let mut number = 0;
        let insert = at(self.av).ops.insert;
        let bytes = crate::pointers::test::bytes(name);
        let inserted = insert(self.av, bytes, 1, output(&mut number), 0, Out::NULL);
        assert_eq!(inserted, 1);
        number
    }

    /// The next completion, or error.
    pub(super) fn next(&self) -> Result<(CqEntry, u64), CqErrEntry> {
        let start = Instant::now();
        loop {
            match self.poll() {
                Some(next) => return next,
                None => assert!(start.elapsed() < SOON, "no completion"),
            }
        }
    }

    /// The same, if there is one.
    pub(super) fn poll(&self) -> Option<Result<(CqEntry, u64), CqErrEntry>> {
        let mut entry = empty();
        let mut source = 0;
        let read = at(self.cq).ops.readfrom;
        match read(self.cq, erased(&mut entry), 1, output(&mut source)) {
            1 => Some(Ok((entry, source))),
            error if error == -(sys::FI_EAVAIL as isize) => Some(Err(self.error())),
            nothing => {
                assert_eq!(nothing, -(libc::EAGAIN as isize));
                None
            }
        }
    }

    fn error(&self) -> CqErrEntry {
        let mut error = CqErrEntry {
            entry: empty(),
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
        };
        assert_eq!((at(self.cq).ops.readerr)(self.cq, output(&mut error), 0), 1);
        error
    }

    /// Sends, again and again while there is no room.
    pub(super) fn send(&self, to: u64, tag: Option<u64>, bytes: &[u8], number: usize) {
        let (start, from, length) = (
            Instant::now(),
            crate::pointers::test::bytes(bytes),
            bytes.len(),
        );
        let (msg, tagged) = (at(self.ep).msg, at(self.ep).tagged);
        loop {
            let posted = match tag {
                Some(tag) => (tagged.send)(
                    self.ep,
                    from,
                    length,
                    Context::NULL,
                    to,
                    tag,
                    context(number),
                ),
                None => (msg.send)(self.ep, from, length, Context::NULL, to, context(number)),
            };
            if posted == 0 {
                return;
            }
            assert_eq!(posted, -(libc::EAGAIN as isize));
            assert!(start.elapsed() < SOON, "no room");
        }
    }

    /// Posts a receive, with a tag and bits of it to ignore.
    pub(super) fn receive(
        &self,
        from: u64,
        tag: Option<(u64, u64)>,
        bytes: &mut [u8],
        number: usize,
    ) {
        let (msg, tagged, length) = (at(self.ep).msg, at(self.ep).tagged, bytes.len());
        let (into, none) = (room(bytes), Context::NULL);
        let posted = match tag {
            Some((tag, ignore)) => (tagged.recv)(
                self.ep,
                into,
                length,
                none,
                from,
                tag,
                ignore,
                context(number),
            ),
            None => (msg.recv)(self.ep, into, length, none, from, context(number)),
        };
        assert_eq!(posted, 0);
    }

    /// Closes its objects in the order that programs have to keep.
    pub(super) fn close(self) {
        assert_eq!(close(self.ep), 0);
        assert_eq!(close(self.events), 0);
        assert_eq!(close(self.cq), 0);
        assert_eq!(close(self.av), 0);
        assert_eq!(close(self.domain), 0);
        assert_eq!(close(self.fabric), 0);
    }
}

/// Enables an endpoint.
pub(super) fn enable(ep: Fid<FidEp>) -> c_int {
    (at(ep).head.ops.control)(head(ep), sys::CONTROL_ENABLE, Out::NULL)
}

/// An info that says nothing.
const EMPTY: Info = Info {
    next: std::ptr::null_mut(),
    caps: 0,
    mode: 0,
    addr_format: 0,
    src_addrlen: 0,
    dest_addrlen: 0,
    src_addr: std::ptr::null_mut(),
    dest_addr: std::ptr::null_mut(),
    handle: std::ptr::null_mut(),
    tx_attr: std::ptr::null_mut(),
    rx_attr: std::ptr::null_mut(),
    ep_attr: std::ptr::null_mut(),
    domain_attr: std::ptr::null_mut(),
    fabric_attr: std::ptr::null_mut(),
    nic: std::ptr::null_mut(),
};

/// An endpoint with everything that the provider offers.
pub(super) fn open_endpoint(domain: Fid<FidDomain>) -> Fid<FidEp> {
    open_endpoint_at(domain, &[])
}

/// The same; on the port of an address, if one is given.
pub(super) fn open_endpoint_at(domain: Fid<FidDomain>, source: &[u8]) -> Fid<FidEp> {
    let offer = select("qnic0", 2 << 16, Named::default(), None).unwrap();
    let (mut tx, mut rx, mut ep) = (offer.tx, offer.rx, offer.ep);
    let info = Info {
        caps: offer.caps,
        addr_format: offer.addr_format,
        src_addrlen: source.len(),
        src_addr: source.as_ptr().cast_mut().cast(),
        tx_attr: &mut tx,
        rx_attr: &mut rx,
        ep_attr: &mut ep,
        ..EMPTY
    };
    opened(|to| (at(domain).ops.endpoint)(domain, input(&info), to, Context::NULL))
}

pub(super) fn empty() -> CqEntry {
    CqEntry {
        context: Context::NULL,
        flags: 0,
        len: 0,
        buf: Out::NULL,
        data: 0,
        tag: 0,
    }
}

/// Memory that calls know without its type.
pub(super) fn erased<T>(value: &mut T) -> Out<c_void> {
    // SAFETY: so many bytes, and nothing else looks at them meanwhile.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast::<u8>(), size_of::<T>())
    };
    room(bytes)
}

/// Two endpoints that know each other as number 0.
pub(super) fn pair() -> (Cluster, Side, Side) {
    pair_with(TAGGED, BOTH)
}

pub(super) fn pair_with(attributes: CqAttr, binding: u64) -> (Cluster, Side, Side) {
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, attributes, binding);
    let b = Side::new(&cluster, 1, attributes, binding);
    assert_eq!((a.insert(&b.name), b.insert(&a.name)), (0, 0));
    (cluster, a, b)
}
