//! Cases about captures: what runs over links, as Wireshark sees it (X5).

use std::collections::BTreeMap;
use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{ensure, Context, Result};
use qnic_abi::ethernet::Ethernet;
use qnic_abi::wire::Frame;
use qnic_cluster::{CaptureOptions, DISSECTOR};
use qnic_images::{Cache, Program, Provisioner, Silent};
use serde_json::{json, Value};

use crate::harness::Skip;
use crate::net::link_sum;
use crate::scenario::{self, Load};
use qnic_trials::nodes::host::HostNodes;
use qnic_trials::nodes::{counter, until, FirstNodes, Nodes, LIMIT};

/// What links do to frames: how a filter finds it, and the counter of it.
const DONE_BY_LINKS: [(&str, &str); 4] = [
    ("qnic.link.outcome == 1", "lost"),
    ("qnic.link.corrupted == 1", "corrupted"),
    ("qnic.link.duplicated == 1", "duplicated"),
    ("qnic.link.reordered == 1", "reordered"),
];

/// A capture that runs; a thread of its own reads what comes.
struct Running {
    socket: UnixStream,
    reader: JoinHandle<std::io::Result<Vec<u8>>>,
}

impl Running {
    fn begin(nodes: &HostNodes, request: &Value) -> Result<Self> {
        let (answer, mut stream) = nodes.request(0, request)?;
        ensure!(answer["capturing"] == true, "{answer}");
        let socket = stream.get_ref().try_clone()?;
        socket.set_read_timeout(None)?;
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).map(|_| bytes)
        });
        Ok(Running { socket, reader })
    }

    /// Ends it; all of it.
    fn finish(self) -> Result<Vec<u8>> {
        self.socket.shutdown(Shutdown::Write)?;
        let read = self.reader.join();
        let read = read.map_err(|_| anyhow::anyhow!("the reader panicked"))?;
        read.context("read the capture")
    }
}

/// tshark with the dissector, and a directory for files.
struct Wireshark {
    tshark: Program,
    directory: tempfile::TempDir,
    script: PathBuf,
}

impl Wireshark {
    /// Without tshark a case cannot run ([`Skip`]).
    fn find() -> Result<Self> {
        let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
        let tshark = provisioner.tshark().context(Skip("no tshark can be had"))?;
        let directory = tempfile::tempdir().context("make a directory for captures")?;
        let script = directory.path().join("qnic.lua");
        std::fs::write(&script, DISSECTOR).context("write the dissector")?;
        Ok(Wireshark {
            tshark,
            directory,
            script,
        })
    }

    fn keep(&self, capture: Running) -> Result<PathBuf> {
        let file = self.directory.path().join("capture.pcapng");
        std::fs::write(&file, capture.finish()?).context("write the capture")?;
        Ok(file)
    }

    /// What tshark prints with these arguments.
    fn read(&self, file: &Path, arguments: &[&str]) -> Result<String> {
        let mut script = std::ffi::OsString::from("lua_script:");
        script.push(&self.script);
        let mut command = self.tshark.command();
        // Preferences of the user that runs the test change nothing.
        command
            .env("HOME", self.directory.path())
            .env("XDG_CONFIG_HOME", self.directory.path());
        // Two passes: the first finds what later frames say of earlier ones.
        command.arg("-2").arg("-X").arg(script).arg("-r").arg(file);
        let output = command.args(arguments).output().context("run tshark")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tshark: {errors}");
        ensure!(!errors.contains("Lua"), "tshark: {errors}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The values of fields in the frames that a filter lets pass, a line for each.
    fn fields(&self, file: &Path, filter: &str, fields: &str) -> Result<Vec<Vec<String>>> {
        let mut arguments = vec!["-Y", filter, "-T", "fields"];
        for field in fields.split(' ') {
            arguments.extend(["-e", field]);
        }
        let text = self.read(file, &arguments)?;
        let values = |line: &str| line.split('\t').map(str::to_owned).collect();
        Ok(text.lines().map(values).collect())
    }
}

/// The counters once some frames were lost, damaged, doubled, overtaken and sent again.
fn until_enough_was_sent_again(nodes: &HostNodes) -> Result<Value> {
    let mut stats = Value::Null;
    until(LIMIT, || {
        stats = nodes.device_stats()?;
        let network = &stats["network"];
        let mut names = DONE_BY_LINKS.iter().map(|(_, name)| name);
        let links = names.all(|name| link_sum(network, name) > 3);
        let enough = links && both(&stats, "frames_resent")? > 20;
        Ok((!enough).then(|| format!("too little was sent again: {stats}")))
    })?;
    Ok(stats)
}

/// Sum of a counter of both NICs.
fn both(stats: &Value, name: &str) -> Result<u64> {
    Ok(counter(stats, 0, name)? + counter(stats, 1, name)?)
}

/// A capture of transfers on bad links: tshark shows every field of the header, and
/// finds as many retransmissions and drops as the NICs and the links have counted.
pub(crate) fn wireshark_reads_it() -> Result<()> {
    let wireshark = Wireshark::find()?;
    // The rate keeps the capture small.
    let network = "[network]\nseed = 9\n[network.default]\nloss = \"5%\"\nreorder = \"2%\"\n\
                   duplicate = \"2%\"\ncorrupt = \"2%\"\ndelay = \"20us\"\nrate = \"50Mbit\"\n";
    let nodes = HostNodes::start_with(2, network)?;
    let capture = Running::begin(&nodes, &CaptureOptions::default().request(&json!("all")))?;
    // The NIC of a program that ends is reset, and its counters with it: these do not end.
    let mut load = Load::start(&nodes, [0, 1])?;
    let before = until_enough_was_sent_again(&nodes)?;
    // What comes between the two looks at the counters may be in the capture or not.
    let file = wireshark.keep(capture)?;
    let after = nodes.device_stats()?;
    load.writer.kill()?;
    load.server.kill()?;

    every_field_is_shown(&wireshark, &file)?;

    let between = |what: &str, found: u64, low: u64, high: u64| {
        ensure!(
            (low..=high).contains(&found),
            "{found} {what} in the capture, the counters say {low} to {high}"
        );
        Ok(())
    };
    let count = |filter: &str| -> Result<u64> {
        Ok(wireshark.fields(&file, filter, "frame.number")?.len() as u64)
    };
    let missing = count("frame.drop_count")?;
    ensure!(missing == 0, "the capture has {missing} gaps");
    let resent = count("qnic.expert.retransmission")?;
    let [low, high] = [
        both(&before, "frames_resent")?,
        both(&after, "frames_resent")?,
    ];
    between("retransmissions", resent, low, high)?;
    for (filter, name) in DONE_BY_LINKS {
        let low = link_sum(&before["network"], name);
        let high = link_sum(&after["network"], name);
        between(name, count(filter)?, low, high)?;
    }
    relations_are_right(&wireshark, &file)
}

/// `-V` prints every field of the envelope and of the body of a Write.
fn every_field_is_shown(wireshark: &Wireshark, file: &Path) -> Result<()> {
    let shown = wireshark.read(file, &["-Y", "qnic.kind == 64", "-c", "200", "-T", "pdml"])?;
    let sources = [
        (
            include_str!("../../abi/src/wire.rs"),
            "pub struct Envelope {",
        ),
        (include_str!("../../abi/src/rdma.rs"), "pub struct Write {"),
    ];
    let fields = sources.map(|(source, name)| {
        let (_, rest) = source.split_once(name).unwrap_or_default();
        rest.split_once("\n}").unwrap_or_default().0
    });
    let names = fields.iter().flat_map(|fields| fields.lines());
    let names = names.filter_map(|line| Some(line.trim().strip_prefix("pub ")?.split_once(':')?.0));
    let names: Vec<_> = names.collect();
    ensure!(names.len() == 23, "fields of the frame: {names:?}");
    for name in names {
        ensure!(
            shown.contains(&format!("name=\"qnic.{name}\"")),
            "tshark does not show qnic.{name}"
        );
    }
    Ok(())
}

/// A retransmission repeats the number of the frame it refers to; an acknowledgement has a
/// number that is not smaller, and comes from the other side; responses carry the operation
/// of their requests.
fn relations_are_right(wireshark: &Wireshark, file: &Path) -> Result<()> {
    const FIELDS: &str = "frame.number qnic.source_node qnic.sequence qnic.acknowledge \
                          qnic.operation qnic.retransmission_of qnic.acknowledged_in \
                          qnic.response_to qnic.kind";
    let frames = wireshark.fields(file, "qnic", FIELDS)?;
    let number = |text: &str| -> Result<usize> { text.parse().with_context(|| text.to_owned()) };
    let at = |text: &str| -> Result<Option<&Vec<String>>> {
        match text {
            "" => Ok(None),
            text => Ok(frames.get(number(text)? - 1)),
        }
    };
    // How far each node has said that the other's frames have arrived.
    let mut received = BTreeMap::new();
    for frame in &frames {
        ensure!(frame.len() == FIELDS.split(' ').count(), "{frame:?}");
        let up_to = received.entry(frame[1].as_str()).or_insert(0);
        *up_to = number(&frame[3])?.max(*up_to);
    }
    let (mut again, mut acknowledged, mut responses) = (0, 0, 0);
    for frame in &frames {
        let sequence = number(&frame[2])?;
        let others = received.iter().filter(|(node, _)| **node != frame[1]);
        let arrived = others.map(|(_, up_to)| *up_to).max().unwrap_or(0);
        // A frame may also be sent again after it was acknowledged.
        if (1..=arrived).contains(&sequence) && frame[5].is_empty() {
            ensure!(!frame[6].is_empty(), "no acknowledgement of {frame:?}");
        }
        if let Some(first) = at(&frame[5])? {
            again += 1;
            let same = first[1..3] == frame[1..3] && first[4] == frame[4] && first[8] == frame[8];
            ensure!(same && first[0] != frame[0], "{frame:?} after {first:?}");
        }
        if let Some(other) = at(&frame[6])? {
            acknowledged += 1;
            ensure!(other[1] != frame[1], "{frame:?} by {other:?}");
            ensure!(
                number(&other[0])? > number(&frame[0])?,
                "{frame:?} by {other:?}"
            );
            // An Ack also names frames beyond the first gap.
            let up_to = number(&other[3])? >= sequence || other[8] == "1";
            ensure!(up_to, "{frame:?} by {other:?}");
        }
        if let Some(request) = at(&frame[7])? {
            responses += 1;
            ensure!(request[1] != frame[1], "{frame:?} to {request:?}");
            ensure!(request[4] == frame[4], "{frame:?} to {request:?}");
        }
    }
    ensure!(again > 0, "no retransmission names its frame");
    ensure!(responses > 0, "no response names its request");
    ensure!(acknowledged > 0, "no frame names its acknowledgement");
    Ok(())
}

/// Frames that are handed over by a call are captured, too, and only those of the
/// links that were asked for.
pub(crate) fn lossless_links() -> Result<()> {
    let wireshark = Wireshark::find()?;
    let nodes = HostNodes::start(3)?;
    let options = CaptureOptions {
        snaplen: Some(64),
        count: None,
    };
    let one_way = Running::begin(&nodes, &options.request(&json!({ "one_way": [0, 1] })))?;
    let none = Running::begin(&nodes, &options.request(&json!({ "at": 2 })))?;
    let nobody = Running::begin(&nodes, &options.request(&json!({ "at": 9 })));
    ensure!(nobody.is_err(), "a capture of a node that is not there");
    scenario::all_pairs_exchange(&FirstNodes(&nodes, 2), 5)?;
    let file = wireshark.keep(one_way)?;
    let fields = "frame.interface_name qnic.source_node frame.cap_len qnic.kind";
    let frames = wireshark.fields(&file, "qnic", fields)?;
    let mut writes = 0;
    for frame in &frames {
        ensure!(frame[..3] == ["n0>n1", "0", "72"], "{frame:?}");
        writes += usize::from(frame[3] == "64");
    }
    ensure!(writes > 0, "no writes");
    ensure!(frames.len() > writes, "nothing but writes");
    let again = wireshark.fields(&file, "qnic.retransmission_of", "frame.number")?;
    ensure!(
        again.is_empty(),
        "retransmissions on a lossless link: {again:?}"
    );
    let file = wireshark.keep(none)?;
    let others = wireshark.fields(&file, "frame", "frame.number")?;
    ensure!(others.is_empty(), "{} frames of another link", others.len());
    Ok(())
}

/// A frame of an Ethernet port is shown as on any Ethernet, under the fields of its link (X17).
pub(crate) fn wireshark_reads_ethernet() -> Result<()> {
    let wireshark = Wireshark::find()?;
    // A request of ARP to all.
    let mut ethernet = [[0xff; 6], [0x52, 0x54, 0, 0x71, 0, 2]].concat();
    ethernet.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 0x52, 0x54, 0, 0x71, 0, 2]);
    ethernet.extend([10, 71, 0, 3, 0, 0, 0, 0, 0, 0, 10, 71, 0, 1]);
    let mut frame = Frame::new(&Ethernet::default());
    frame.envelope.source_node = 2.into();
    frame.envelope.destination_node = 5.into();
    frame.envelope.payload_length = (ethernet.len() as u16).into();
    // The link lets it pass, from 2 to 5.
    let link = [1, 0, 0, 0, 2, 0, 5, 0];
    let image = [&link, frame.header(), &ethernet].concat();
    let length = (image.len() as u32).to_le_bytes();
    // A classic capture: version 2.4, packets of up to 64 KiB, link type USER0.
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([0, 0, 1, 0, 147, 0, 0, 0]);
    file.extend([[0; 4], [0; 4], length, length].concat());
    file.extend(image);
    let path = wireshark.directory.path().join("ethernet.pcap");
    std::fs::write(&path, file).context("write the capture")?;
    let fields = "qnic.source_node qnic.destination_node eth.src arp.dst.proto_ipv4";
    let seen = wireshark.fields(&path, "arp", fields)?;
    ensure!(
        seen == [["2", "5", "52:54:00:71:00:02", "10.71.0.1"]],
        "{seen:?}"
    );
    Ok(())
}
