//! The metrics and control socket: one JSON request a line, one JSON answer a line.
//!
//! | request | answer |
//! |---|---|
//! | `{"cmd":"stats"}` | [`Stats`]: the NICs, the engine, the memory of the process |
//! | `{"cmd":"net_set","links":LINKS,"change":{"loss":"5%"}}` | changes what links do ([`qnic_links::ImpairmentChange`]): `{"changed":N}`, N directions |
//! | `{"cmd":"net_clear","links":LINKS}` | makes them do nothing: `{"changed":N}` |
//! | `{"cmd":"capture","links":LINKS,"snaplen":N,"count":N}` | `{"capturing":true}`, and then the connection is a pcapng stream of what runs over links (docs/capture.md), until it has had `count` frames or the client shuts down its side; both numbers may be left out |
//! | `{"cmd":"expect_pause","node":1}` | when QEMU stops this node's queues next, within 30 s, it pauses the machine: its NIC is not reset and serves its peers on. A paused machine must go on before it is reset |
//!
//! LINKS names links by node numbers: `"all"`, `{"at":1}`, `{"between":[0,1]}`,
//! `{"one_way":[0,1]}`.
//!
//! Anything else is answered with `{"error":"…"}`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use qnic_abi::NodeId;
use qnic_links::{ImpairmentChange, LinkSet};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::capture::{CaptureSettings, Captures};
use crate::engine::{Command, EngineGone, EngineHandle, Report};
use crate::stop::Stop;

/// Longest request in bytes.
const MAX_REQUEST: u64 = 4096;

/// How long a client may keep the server waiting.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(tag = "cmd", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Stats {},
    NetSet {
        links: Links,
        change: ImpairmentChange,
    },
    NetClear {
        links: Links,
    },
    ExpectPause {
        node: u16,
    },
    Capture {
        links: Links,
        #[serde(default = "whole_frames")]
        snaplen: u32,
        #[serde(default)]
        count: u64,
    },
}

/// Room for any frame.
fn whole_frames() -> u32 {
    1 << 16
}

/// Links, by the numbers of nodes.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Links {
    All,
    At(u16),
    Between(u16, u16),
    OneWay(u16, u16),
}

impl From<Links> for LinkSet {
    fn from(links: Links) -> Self {
        match links {
            Links::All => LinkSet::All,
            Links::At(node) => LinkSet::At(NodeId(node)),
            Links::Between(a, b) => LinkSet::Between(NodeId(a), NodeId(b)),
            Links::OneWay(a, b) => LinkSet::OneWay(NodeId(a), NodeId(b)),
        }
    }
}

/// The answer to a change of links.
#[derive(Serialize)]
struct Changed {
    changed: usize,
}

/// The answer to `stats`.
#[derive(Debug, Serialize)]
pub struct Stats {
    /// The NICs and the engine.
    #[serde(flatten)]
    pub report: Report,
    /// Resident memory of the process in bytes, memfds (SRAM, guest RAM) included.
    pub rss_bytes: u64,
    /// Resident memory of the process in bytes that is its own.
    pub rss_anon_bytes: u64,
}

#[derive(Serialize)]
struct Failure {
    error: String,
}

/// Serves clients, one after the other, until `stop` is raised.
pub(crate) fn serve(
    listener: &UnixListener,
    engine: &EngineHandle,
    mut captures: Captures,
    stop: &Stop,
) {
    loop {
        let mut fds = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(listener, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        if fds[1].revents().is_empty() {
            continue;
        }
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(_) if stop.comes_within(PATIENCE) => return,
            Err(_) => continue,
        };
        let served = stop
            .watch(&client)
            .and_then(|()| converse(&client, engine, &mut captures));
        if let Err(error) = served {
            tracing::debug!("metrics client: {error}");
        }
        stop.unwatch();
    }
}

fn converse(
    client: &UnixStream,
    engine: &EngineHandle,
    captures: &mut Captures,
) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    loop {
        line.clear();
        if lines.by_ref().take(MAX_REQUEST).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let say = |answer: &str| (&*client).write_all(format!("{answer}\n").as_bytes());
        let answer = match serde_json::from_str(&line) {
            Ok(Request::Stats {}) => stats(engine).and_then(|stats| json(&stats)),
            Ok(Request::NetSet { links, change }) => set_links(engine, links, Some(change)),
            Ok(Request::NetClear { links }) => set_links(engine, links, None),
            Ok(Request::ExpectPause { node }) => expect_pause(engine, node),
            Ok(Request::Capture {
                links,
                snaplen,
                count,
            }) => {
                let settings = CaptureSettings {
                    links: links.into(),
                    snaplen,
                    count,
                };
                return match captures.begin(client, engine, &settings) {
                    Ok(()) => Ok(()),
                    Err(error) => say(&failure(error)),
                };
            }
            Err(error) => Err(format!(
                "{error}; known requests: {{\"cmd\":\"stats\"}}, \"net_set\", \"net_clear\", \"capture\", \
                 \"expect_pause\""
            )),
        };
        say(&answer.unwrap_or_else(failure))?;
    }
}

fn failure(error: String) -> String {
    json(&Failure { error }).unwrap_or_default()
}

fn set_links(
    engine: &EngineHandle,
    links: Links,
    change: Option<ImpairmentChange>,
) -> Result<String, String> {
    let links = links.into();
    let changed = engine.ask(|answer| Command::SetLinks {
        links,
        change,
        answer,
    });
    let changed = changed.map_err(|error| error.to_string())?;
    let changed = changed.map_err(|error| error.to_string())?;
    tracing::info!(?links, ?change, changed, "links changed");
    json(&Changed { changed })
}

fn expect_pause(engine: &EngineHandle, node: u16) -> Result<String, String> {
    let expected = engine.ask(|answer| Command::ExpectPause { node, answer });
    match expected.map_err(|error| error.to_string())? {
        true => Ok("{}".to_owned()),
        false => Err(format!(
            "node {node} has no NIC here that a driver has started: nothing can be paused"
        )),
    }
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(value).map_err(|error| error.to_string())
}

fn stats(engine: &EngineHandle) -> Result<Stats, String> {
    collect(engine).map_err(|error| error.to_string())
}

/// Asks the engine, and the system for the memory of the process.
pub(crate) fn collect(engine: &EngineHandle) -> Result<Stats, EngineGone> {
    let report = engine.ask(|answer| Command::Report { answer })?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Ok(Stats {
        report,
        rss_bytes: kib_field(&status, "VmRSS:") * 1024,
        rss_anon_bytes: kib_field(&status, "RssAnon:") * 1024,
    })
}

/// A field of `/proc/*/status` in KiB, 0 if it is not there.
fn kib_field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_system() {
        assert_eq!(
            kib_field("VmPeak:\t 9 kB\nVmRSS:\t  120 kB\n", "VmRSS:"),
            120
        );
        assert_eq!(kib_field("", "VmRSS:"), 0);
    }

    #[test]
    fn requests_are_checked() {
        for good in [
            r#"{"cmd":"stats"}"#,
            r#"{"cmd":"net_set","links":"all","change":{"loss":"5%","partition":true}}"#,
            r#"{"cmd":"net_set","links":{"one_way":[0,1]},"change":{"delay":"1ms"}}"#,
            r#"{"cmd":"net_clear","links":{"at":3}}"#,
            r#"{"cmd":"capture","links":"all"}"#,
            r#"{"cmd":"capture","links":{"between":[0,1]},"snaplen":120,"count":7}"#,
            r#"{"cmd":"expect_pause","node":1}"#,
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
            r#"{"cmd":"net_clear","links":{"between":[0]}}"#,
            r#"{"cmd":"capture"}"#,
            r#"{"cmd":"capture","links":"all","snaplen":-1}"#,
        ] {
            assert!(serde_json::from_str::<Request>(bad).is_err(), "{bad}");
        }
    }
}
