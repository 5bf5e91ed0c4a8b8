//! Settings of a trial beside its cluster file: `loss=5%`, `kernel=backports`, `env.N=3`.
//!
//! | key | sets |
//! |---|---|
//! | `loss`, `reorder`, `duplicate`, `corrupt`, `delay`, `jitter`, `rate`, `partition` | what every link does, also those that the file names; 0 is none |
//! | `kernel`, `memory`, `cpus` | every node; `NODE.kernel` and so on: one node |
//! | `accel` | the cluster |
//! | `env.NAME` | a variable in the program's environment |
//!
//! What the clock changes (`[[network.schedule]]`) comes on top, and a heal goes back to what
//! these settings have made of the file.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use qnic_cluster::{AccelChoice, ClusterSpec, ImpairmentChange, NodeSpec};
use serde::{Serialize, Serializer};
use serde_json::{json, Value};

/// Keys of links.
const CHANCES: [&str; 4] = ["loss", "reorder", "duplicate", "corrupt"];
const TIMES: [&str; 2] = ["delay", "jitter"];
/// Keys of nodes.
const NODES: [&str; 3] = ["kernel", "memory", "cpus"];
/// What stands before the name of a variable.
const ENV: &str = "env.";

/// One setting, `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    key: String,
    value: String,
}

/// A setting is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {message}")]
pub struct WrongSetting {
    setting: String,
    message: String,
}

impl Setting {
    /// The setting of `key`.
    pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: value.into(),
        }
    }

    /// What it sets.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// To what.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The variable of the program's environment that it sets, if it does.
    pub fn variable(&self) -> Option<(&str, &str)> {
        Some((self.key.strip_prefix(ENV)?, &self.value))
    }

    /// Makes it part of `spec`.
    ///
    /// # Errors
    /// Says what is wrong with the key or the value. The cluster is checked as a whole later.
    pub fn apply(&self, spec: &mut ClusterSpec) -> Result<(), WrongSetting> {
        self.try_apply(spec).map_err(|message| WrongSetting {
            setting: self.to_string(),
            message,
        })
    }

    fn try_apply(&self, spec: &mut ClusterSpec) -> Result<(), String> {
        let key = self.key.as_str();
        if let Some(value) = self.impairment()? {
            return change_links(spec, key, &value);
        }
        if let Some((name, _)) = self.variable() {
            let fits = !name.is_empty() && !name.contains('=');
            return fits.then_some(()).ok_or("expected env.NAME".to_owned());
        }
        if key == "accel" {
            spec.accel = accel(&self.value)?;
            return Ok(());
        }
        let (node, key) = match key.rsplit_once('.') {
            Some((node, key)) => (Some(node), key),
            None => (None, key),
        };
        if !NODES.contains(&key) {
            return Err(unknown());
        }
        let chosen = |one: &&mut NodeSpec| node.is_none_or(|node| one.name == node);
        let mut count = 0;
        for one in spec.nodes.iter_mut().filter(chosen) {
            set_node(one, key, &self.value)?;
            count += 1;
        }
        match (node, count) {
            (Some(node), 0) => Err(format!("there is no node {node:?}")),
            _ => Ok(()),
        }
    }

    /// The value as links know it, if the key is one of theirs.
    fn impairment(&self) -> Result<Option<Value>, String> {
        let (key, value) = (self.key.as_str(), self.value.as_str());
        let zero = value == "0";
        Ok(Some(match key {
            _ if CHANCES.contains(&key) && zero => json!("0%"),
            _ if TIMES.contains(&key) && zero => json!("0s"),
            _ if CHANCES.contains(&key) || TIMES.contains(&key) => json!(value),
            "rate" if zero || value == "none" => Value::Null,
            "rate" => json!(value),
            "partition" => match value {
                "true" | "on" => json!(true),
                "false" | "off" | "0" => json!(false),
                _ => return Err("expected true or false".to_owned()),
            },
            _ => return Ok(None),
        }))
    }
}

fn change_links(spec: &mut ClusterSpec, key: &str, value: &Value) -> Result<(), String> {
    let change = serde_json::from_value(json!({ key: value }));
    let change: ImpairmentChange = change.map_err(|error| error.to_string())?;
    let network = spec.network.get_or_insert_default();
    network.default = change.applied_to(network.default);
    for link in &mut network.links {
        link.impairments = change.applied_to(link.impairments);
    }
    Ok(())
}

fn accel(value: &str) -> Result<AccelChoice, String> {
    serde_json::from_value(json!(value)).map_err(|_| "expected auto, kvm or tcg".to_owned())
}

fn set_node(node: &mut NodeSpec, key: &str, value: &str) -> Result<(), String> {
    match key {
        "kernel" => node.kernel = value.parse().map_err(|error| format!("{error}"))?,
        "memory" => node.memory = value.parse().map_err(|error| format!("{error}"))?,
        _ => node.cpus = value.parse().map_err(|_| "expected a number".to_owned())?,
    }
    Ok(())
}

fn unknown() -> String {
    format!(
        "there is no such setting: use {}, {}, rate, partition, {}, accel or env.NAME",
        CHANCES.join(", "),
        TIMES.join(", "),
        NODES.join(", ")
    )
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self::new(key, value)),
            _ => Err("expected KEY=VALUE, such as loss=5%".to_owned()),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl Serialize for Setting {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// Reads `90`, which are seconds, or `1m 30s`.
///
/// # Errors
/// Says what was expected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64);
    let parsed = match seconds {
        Some(seconds) => seconds.ok(),
        None => humantime::parse_duration(text).ok(),
    };
    parsed.ok_or_else(|| "expected a time such as \"90\" (seconds) or \"2m\"".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = "name = \"c\"\n[[node]]\nname = \"a\"\n[[node]]\nname = \"b\"\n\
                        [network]\ndefault = { delay = \"1ms\" }\n[[network.link]]\n\
                        between = [\"a\", \"b\"]\nimpairments = { reorder = \"2%\" }\n";

    fn spec() -> ClusterSpec {
        ClusterSpec::parse(FILE, Path::new("c.toml")).unwrap()
    }

    fn with(settings: &[&str]) -> Result<ClusterSpec, String> {
        let mut spec = spec();
        for setting in settings {
            let setting: Setting = setting.parse()?;
            setting
                .apply(&mut spec)
                .map_err(|error| error.to_string())?;
        }
        Ok(spec)
    }

    #[test]
    fn settings_of_links_hold_for_all_of_them_and_leave_the_rest() {
        let spec = with(&["loss=5%", "rate=1Gbit"]).unwrap();
        let network = spec.network.unwrap();
        assert_eq!(network.default.to_string(), "loss 5% delay 1ms rate 1Gbit");
        let link = network.links[0].impairments;
        assert_eq!(link.to_string(), "loss 5% reorder 2% rate 1Gbit");
        let back = with(&["loss=5%", "loss=0", "delay=0", "rate=none"]).unwrap();
        assert!(back.network.unwrap().default.is_none());
        let mut plain = ClusterSpec::new("c").with(NodeSpec::new("a"));
        Setting::new("loss", "1%").apply(&mut plain).unwrap();
        assert_eq!(plain.network.unwrap().default.to_string(), "loss 1%");
    }

    #[test]
    fn settings_of_nodes_hold_for_all_or_one() {
        let spec = with(&["kernel=backports", "b.kernel=stable", "a.memory=1GiB"]).unwrap();
        let [a, b] = &spec.nodes[..] else { panic!() };
        assert_eq!(
            [a.kernel.as_str(), b.kernel.as_str()],
            ["backports", "stable"]
        );
        assert_eq!(a.memory.to_string(), "1GiB");
        assert_eq!(with(&["accel=tcg"]).unwrap().accel, AccelChoice::Tcg);
        let variable: Setting = "env.N=a=b".parse().unwrap();
        assert_eq!(variable.variable(), Some(("N", "a=b")));
        assert_eq!(with(&["env.N=a=b"]).unwrap(), self::spec());
    }

    #[test]
    fn mistakes_are_told() {
        for (setting, expected) in [
            ("loss", "expected KEY=VALUE"),
            ("=5", "expected KEY=VALUE"),
            ("loss=5", "loss=5: expected a percentage"),
            ("delay=soon", "delay=soon: expected a time"),
            ("rate=fast", "rate=fast: expected a rate"),
            ("partition=maybe", "partition=maybe: expected true or false"),
            (
                "colour=red",
                "colour=red: there is no such setting: use loss,",
            ),
            ("kernel=9", "kernel=9: there is no kernel series"),
            ("memory=much", "memory=much: expected a size"),
            ("cpus=x", "cpus=x: expected a number"),
            ("accel=hvf", "accel=hvf: expected auto, kvm or tcg"),
            ("x.cpus=1", "x.cpus=1: there is no node \"x\""),
            ("env.=1", "env.=1: expected env.NAME"),
        ] {
            let error = with(&[setting]).unwrap_err();
            assert!(error.starts_with(expected), "{setting}: {error}");
        }
    }

    #[test]
    fn durations_are_seconds_or_have_units() {
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("-1").is_err() && duration("soon").is_err());
    }
}
