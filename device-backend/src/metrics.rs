//! The metrics and control socket: one JSON request and one JSON response a line.
//!
//! | request | response |
//! |---|---|
//! | `{"cmd":"stats"}` | [`Stats`]: the NICs, the engines, the memory of the process |
//! | `{"cmd":"net_set","links":LINKS,"change":{"loss":"5%"}}` | changes impairments ([`qnic_links::ImpairmentChange`]): `{"changed":N}`, N directions; with `"seed":N`, the chance of these links begins anew |
//! | `{"cmd":"net_clear","links":LINKS}` | removes all impairments: `{"changed":N}` |
//! | `{"cmd":"net_restore","links":LINKS}` | makes links do again what the configuration says: `{"changed":N}`; `"seed":N` as above |
//! | `{"cmd":"capture","links":LINKS,"snaplen":N,"count":N}` | `{"capturing":true}`, and then the connection is a pcapng stream of the frames on links (docs/capture.md), until `count` frames were sent or the client shuts down its side; both numbers are optional |
//! | `{"cmd":"trace","nodes":["a"],"sample":N}` | `{"tracing":[{"node":0,"name":"a"}],"sample":N}`, and then the connection is a stream of events of every Nth operation (`trace.rs`), until the client shuts down its side; both are optional |
//! | `{"cmd":"expect_pause","node":1}` | `{"expected":true}`: when QEMU stops this node's queues next, within 30 s, it pauses the machine: its NIC is not suspended and continues to serve its peers. A paused machine must continue before it is reset. `false`: the node has no NIC here that runs, and a pause changes nothing for its peers |
//! | `{"cmd":"table","node":1,"table":"names"}` | what a NIC holds: `{"columns":[…],"rows":[[…]],"truncated":false}`, at most 4,096 rows; `map`, `names`, `groups`, `queues` or `queue_pairs` |
//! | `{"cmd":"fault","node":1,"queue_pair":17,"not_ready":3}` | injects faults into a queue pair of verbs, beside those that it still has: `{"injected":true}`. `not_ready`: so many messages of its peer find no receive; `denied`: so many writes, reads and atomic operations of its peer are denied; `"fails":true`: it fails at once |
//!
//! LINKS names links by node numbers: `"all"`, `{"at":1}`, `{"between":[0,1]}`,
//! `{"one_way":[0,1]}`.
//!
//! The response to anything else is `{"error":"…"}`.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use procfs::process::{Process, Status};
use qnic_links::{ImpairmentChange, LinkChange, LinkSet};
use qnic_nic::{QueuePairFaults, TableKind};
use serde::{Deserialize, Serialize};

use crate::capture::{CaptureSettings, Captures};
use crate::engine::{EngineGone, Engines, Report};
use crate::stop::Stop;
use crate::trace::{TraceSettings, Traces};

/// Longest request in bytes.
const MAX_REQUEST: u64 = 4096;

/// Longest time that the server waits for a client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Stats {},
    NetSet {
        links: LinkSet,
        change: ImpairmentChange,
        seed: Option<u64>,
    },
    NetClear {
        links: LinkSet,
    },
    NetRestore {
        links: LinkSet,
        seed: Option<u64>,
    },
    ExpectPause {
        node: u16,
    },
    Table {
        node: u16,
        table: TableName,
    },
    Fault {
        node: u16,
        queue_pair: u32,
        #[serde(flatten)]
        faults: Faults,
    },
    Capture(CaptureSettings),
    Trace(TraceSettings),
}

/// The names of tables in requests.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TableName {
    Map,
    Names,
    Groups,
    Queues,
    QueuePairs,
}

/// Faults in requests.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Faults {
    #[serde(default)]
    not_ready: u32,
    #[serde(default)]
    denied: u32,
    #[serde(default)]
    fails: bool,
}

qnic_abi::counters! {
    /// The response to `stats`.
    #[derive(Debug, Serialize)]
    pub struct Stats: u64 {
        {
            /// The NICs and the engines.
            #[serde(flatten)]
            pub report: Report,
        }
        Gauge process_resident_memory_bytes
            "Resident memory of the process, SRAM and guest RAM included." = rss_bytes;
        Gauge qnic_process_own_memory_bytes
            "Resident memory of the process that is its own." = rss_anon_bytes;
    }
}

/// What clients are given beyond one answer.
pub(crate) struct Streams {
    captures: Captures,
    traces: Traces,
}

impl Streams {
    pub(crate) fn new(captures: Captures) -> Self {
        Streams {
            captures,
            traces: Traces::default(),
        }
    }
}

/// Serves clients, one after the other, until `stop` is raised.
pub(crate) fn serve(listener: &UnixListener, engines: &Engines, mut streams: Streams, stop: &Stop) {
    while let Some(client) = stop.accept(listener) {
        let served = stop
            .watch(&client)
            .and_then(|()| converse(&client, engines, &mut streams));
        if let Err(error) = served {
            tracing::debug!("metrics client: {error}");
        }
        stop.unwatch();
    }
}

fn converse(client: &UnixStream, engines: &Engines, streams: &mut Streams) -> std::io::Result<()> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    loop {
        line.clear();
        if lines.by_ref().take(MAX_REQUEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let send = |response: &str| (&*client).write_all(format!("{response}\n").as_bytes());
        let response = match serde_json::from_str(&line) {
            Ok(Request::Stats {}) => stats(engines),
            Ok(Request::NetSet {
                links,
                change,
                seed,
            }) => set_links(engines, links, seed, LinkChange::Set(change)),
            Ok(Request::NetClear { links }) => set_links(engines, links, None, LinkChange::Clear),
            Ok(Request::NetRestore { links, seed }) => {
                set_links(engines, links, seed, LinkChange::Restore)
            }
            Ok(Request::ExpectPause { node }) => expect_pause(engines, node),
            Ok(Request::Table { node, table }) => show_table(engines, node, table),
            Ok(Request::Fault {
                node,
                queue_pair,
                faults,
            }) => inject(engines, (node, queue_pair), faults),
            Ok(Request::Capture(settings)) => {
                let begun = streams.captures.begin(client, engines, settings);
                return begun.or_else(|error| send(&failure(error)));
            }
            Ok(Request::Trace(settings)) => {
                let begun = streams.traces.begin(client, engines, settings);
                return begun.or_else(|error| send(&failure(error)));
            }
            Err(error) => Err(format!(
                "{error}; known requests: {{\"cmd\":\"stats\"}}, \"net_set\", \"net_clear\", \"net_restore\", \
                 \"capture\", \"trace\", \"expect_pause\", \"table\", \"fault\""
            )
            .into()),
        };
        send(&response.unwrap_or_else(failure))?;
    }
}

fn failure(error: impl Display) -> String {
    serde_json::json!({ "error": error.to_string() }).to_string()
}

fn set_links(
    engines: &Engines,
    links: LinkSet,
    seed: Option<u64>,
    change: LinkChange,
) -> crate::Fallible<String> {
    let changed = engines.set_links(links, seed, change)??;
    tracing::info!(?links, ?change, changed, "links changed");
    Ok(serde_json::json!({ "changed": changed }).to_string())
}

fn expect_pause(engines: &Engines, node: u16) -> crate::Fallible<String> {
    let expected = engines.expect_pause(node)?;
    Ok(serde_json::json!({ "expected": expected }).to_string())
}

fn show_table(engines: &Engines, node: u16, table: TableName) -> crate::Fallible<String> {
    let kind = match table {
        TableName::Map => TableKind::Map,
        TableName::Names => TableKind::Names,
        TableName::Groups => TableKind::Groups,
        TableName::Queues => TableKind::Queues,
        TableName::QueuePairs => TableKind::QueuePairs,
    };
    let found = engines.table(node, kind)?;
    let Some(table) = found else {
        return Err(no_nic(node))?;
    };
    let shown = serde_json::json!({
        "columns": table.columns,
        "rows": table.rows,
        "truncated": table.truncated,
    });
    Ok(shown.to_string())
}

fn no_nic(node: u16) -> String {
    format!("node {node} has no NIC in this device process: \"qnic ps\" shows the nodes")
}

fn inject(
    engines: &Engines,
    (node, queue_pair): (u16, u32),
    faults: Faults,
) -> crate::Fallible<String> {
    let faults = QueuePairFaults {
        not_ready: faults.not_ready,
        denied: faults.denied,
        fails: faults.fails,
    };
    match engines.inject((node, queue_pair), faults)? {
        None => Err(no_nic(node))?,
        Some(false) => Err(format!(
            "there is no queue pair {queue_pair} that works; \"qnic nic queue-pairs NODE\" lists those of a node, \
             and ERR is one that has failed"
        ))?,
        Some(true) => {}
    }
    tracing::info!(node, queue_pair, %faults, fails = faults.fails, "faults injected");
    Ok(serde_json::json!({ "injected": true }).to_string())
}

fn stats(engines: &Engines) -> crate::Fallible<String> {
    Ok(serde_json::to_string(&collect(engines)?)?)
}

/// Asks the engines, and the system for the memory of the process.
pub(crate) fn collect(engines: &Engines) -> Result<Stats, EngineGone> {
    let report = engines.report()?;
    let status = Process::myself().and_then(|process| process.status()).ok();
    let bytes = |field: fn(&Status) -> Option<u64>| {
        let kibibytes = status.as_ref().and_then(field);
        kibibytes.unwrap_or(0) * 1024
    };
    Ok(Stats {
        report,
        rss_bytes: bytes(|status| status.vmrss),
        rss_anon_bytes: bytes(|status| status.rssanon),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked() {
        for good in [
            r#"{"cmd":"stats"}"#,
            r#"{"cmd":"net_set","links":"all","change":{"loss":"5%","partition":true}}"#,
            r#"{"cmd":"net_set","links":{"one_way":[0,1]},"change":{"delay":"1ms"}}"#,
            r#"{"cmd":"net_set","links":"all","change":{"loss":"5%"},"seed":7}"#,
            r#"{"cmd":"net_clear","links":{"at":3}}"#,
            r#"{"cmd":"net_restore","links":{"at":3},"seed":7}"#,
            r#"{"cmd":"net_restore","links":"all"}"#,
            r#"{"cmd":"capture","links":"all"}"#,
            r#"{"cmd":"capture","links":{"between":[0,1]},"snaplen":120,"count":7}"#,
            r#"{"cmd":"expect_pause","node":1}"#,
            r#"{"cmd":"fault","node":1,"queue_pair":17,"not_ready":3}"#,
            r#"{"cmd":"fault","node":1,"queue_pair":17,"fails":true}"#,
            r#"{"cmd":"trace"}"#,
            r#"{"cmd":"trace","nodes":["a","b"],"sample":61}"#,
        ] {
            let request = serde_json::from_str::<Request>(good);
            assert!(request.is_ok(), "{good}");
        }
        for bad in [
            "",
            "{}",
            "{\"cmd\":\"quit\"}",
            "{\"cmd\":\"stats\",\"x\":1}",
            r#"{"cmd":"net_set","links":"some","change":{}}"#,
            r#"{"cmd":"net_set","links":"all","change":{"loss":"500%"}}"#,
            r#"{"cmd":"net_set","links":"all","change":{"loss":"5%"},"seed":-1}"#,
            r#"{"cmd":"net_clear","links":{"between":[0]}}"#,
            r#"{"cmd":"capture"}"#,
            r#"{"cmd":"capture","links":"all","snaplen":-1}"#,
            r#"{"cmd":"trace","nodes":[7]}"#,
            r#"{"cmd":"trace","sample":-1}"#,
            r#"{"cmd":"fault","node":1}"#,
            r#"{"cmd":"fault","node":1,"queue_pair":17,"denied":-1}"#,
        ] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }
}
