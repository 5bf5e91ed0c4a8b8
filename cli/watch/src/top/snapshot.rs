//! What the device processes say at one time.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use qnic_cluster::ask_device;
use qnic_cluster::stages::Times;
use serde_json::{json, Value};

use crate::top::Source;

/// All NICs at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When it was taken.
    pub taken: Instant,
    /// The NICs, by the name of their node.
    pub nodes: BTreeMap<String, NodeSnapshot>,
    /// Device processes that did not answer.
    pub silent: Vec<String>,
}

/// One NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSnapshot {
    /// Number of the node.
    pub number: u64,
    /// Network on which it has that number, if it is not `[network]`.
    pub network: Option<String>,
    /// `running`, …
    pub state: String,
    /// Counters, by name.
    pub counters: BTreeMap<String, u64>,
    /// How much of each budget is used, and how much may be.
    pub budgets: BTreeMap<String, (u64, u64)>,
    /// Times, by kind and stage, such as `write queued`.
    pub stages: BTreeMap<String, Times>,
    /// Its processes, by VNI.
    pub processes: BTreeMap<u64, Entry>,
    /// Its peers, by number of the node.
    pub peers: BTreeMap<u64, Entry>,
}

/// What a device process says of a process or a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its numbers, by name.
    pub numbers: BTreeMap<String, u64>,
    /// Its words, by name.
    pub words: BTreeMap<String, String>,
}

impl Entry {
    /// A number; 0 if it is not there.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or_default()
    }

    /// A word; `-` if it is not there.
    pub(crate) fn word(&self, name: &str) -> String {
        let word = self.words.get(name).cloned();
        word.unwrap_or_else(|| "-".to_owned())
    }
}

impl Snapshot {
    /// Asks.
    ///
    /// # Errors
    /// No device process answers.
    pub fn take(source: &Source) -> Result<Self> {
        let stats = match source {
            Source::Cluster(cluster) => cluster.device_stats()?,
            Source::Socket(path) => ask_device(path, &json!({ "cmd": "stats" }))?,
        };
        Ok(Self::parse(&stats, Instant::now()))
    }

    /// Reads an answer. What is not there, or is something else, is left out.
    pub fn parse(stats: &Value, taken: Instant) -> Self {
        let nics = stats["nics"].as_array().into_iter().flatten();
        let nodes = nics.filter_map(|nic| Some((text(&nic["name"])?, NodeSnapshot::parse(nic))));
        let silent = stats["silent"].as_array().into_iter().flatten();
        Snapshot {
            taken,
            nodes: nodes.collect(),
            silent: silent.filter_map(text).collect(),
        }
    }
}

impl NodeSnapshot {
    fn parse(nic: &Value) -> Self {
        NodeSnapshot {
            number: nic["node"].as_u64().unwrap_or_default(),
            network: text(&nic["network"]),
            state: text(&nic["state"]).unwrap_or_default(),
            counters: entries(&nic["statistics"], Value::as_u64),
            budgets: entries(&nic["budgets"], |budget| {
                Some((budget["used"].as_u64()?, budget["limit"].as_u64()?))
            }),
            stages: entries(&nic["stages"], Times::parse),
            processes: numbered(&nic["processes"], "vni"),
            peers: numbered(&nic["peers"], "node"),
        }
    }

    /// A counter; 0 if it is not there.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The entries of a list, by the number of that name.
fn numbered(list: &Value, name: &str) -> BTreeMap<u64, Entry> {
    let list = list.as_array().into_iter().flatten();
    let entries = list.filter_map(|entry| {
        let numbers = entries(entry, Value::as_u64);
        let words = entries(entry, text);
        Some((*numbers.get(name)?, Entry { numbers, words }))
    });
    entries.collect()
}

fn entries<T>(object: &Value, read: impl Fn(&Value) -> Option<T>) -> BTreeMap<String, T> {
    let entries = object.as_object().into_iter().flatten();
    let entries = entries.filter_map(|(name, value)| Some((name.clone(), read(value)?)));
    entries.collect()
}

/// Counters at two times.
pub(crate) struct Between<'a> {
    /// None, if there was no earlier time.
    pub(crate) before: Option<&'a BTreeMap<String, u64>>,
    pub(crate) now: &'a BTreeMap<String, u64>,
    /// In nanoseconds.
    pub(crate) elapsed: u128,
}

impl Between<'_> {
    /// What has come in between; `None` if that is not known.
    pub(crate) fn increase(&self, counter: &str) -> Option<u64> {
        let value = |counters: &BTreeMap<String, u64>| counters.get(counter).copied().unwrap_or(0);
        value(self.now).checked_sub(value(self.before?))
    }

    /// The same per second.
    pub(crate) fn rate(&self, counter: &str) -> Option<u64> {
        let increase = u128::from(self.increase(counter)?) * 1_000_000_000;
        u64::try_from(increase.checked_div(self.elapsed)?).ok()
    }
}
