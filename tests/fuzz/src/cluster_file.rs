//! Cluster files, and the configuration files of the device process.
//!
//! A byte of ASCII is itself; any other byte is one of 64 words, so that keys and tables
//! are as easy to reach as single characters.
//!
//! After any input: it is refused with its location, or taken. What is taken obeys the
//! rules, and written out with its defaults it is read as the same again; the parts of its
//! hosts obey the rules, too. The only thing outside that is looked at is whether a file
//! that is to be copied exists.

use std::path::Path;

use qnic_cluster::ClusterSpec;
use qnic_config::{Config, ConfigError};

/// Most nodes of a cluster, and a margin: a file that asks for more is refused before they
/// are made.
const MOST_NODES: usize = 1 << 12;

/// The file that errors name.
const FILE: &str = "file.toml";

/// What bytes beyond ASCII stand for.
const WORDS: [&str; 64] = [
    "[[node]]\n",
    "[network]\n",
    "[[network.link]]\n",
    "[[network.host]]\n",
    "[[network.process]]\n",
    "[[nic]]\n",
    "[engine]\n",
    "[metrics]\n",
    "[network.udp]\n",
    "[network.shm]\n",
    "[[node.files]]\n",
    "name = ",
    "count = ",
    "memory = ",
    "cpus = ",
    "kernel = ",
    "nic = ",
    "number = ",
    "swap = ",
    "disk = ",
    "qemu_args = ",
    "from = ",
    "to = ",
    "mode = ",
    "accel = ",
    "topology = ",
    "columns = ",
    "hub = ",
    "seed = ",
    "default = ",
    "peer_timeout = ",
    "private_key = ",
    "between = ",
    "one_way = ",
    "impairments = ",
    "address = ",
    "nodes = ",
    "node = ",
    "socket = ",
    "ram = ",
    "doorbells = ",
    "windows = ",
    "poll_window_us = ",
    "listen = ",
    "here = ",
    "elsewhere = ",
    "loss = ",
    "delay = ",
    "jitter = ",
    "rate = ",
    "partition = ",
    "\"a\"",
    "\"n0\"",
    "\"n1\"",
    "[\"n0\", \"n1\"]",
    "\"256MiB\"",
    "\"5%\"",
    "\"10Gbit\"",
    "\"1ms\"",
    "\"127.0.0.1:7000\"",
    "\"torus\"",
    "\"star\"",
    "18446744073709551615",
    "\u{e4}\u{1d11e}",
];

/// Runs one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(data: &[u8]) {
    let text = text(data);
    let file = Path::new(FILE);
    match ClusterSpec::parse(&text, file) {
        Ok(spec) => check_cluster(&spec),
        Err(error) => check_error(&text, &error),
    }
    match Config::parse(&text, file) {
        Ok(config) => check_config(&config),
        Err(error) => check_error(&text, &error),
    }
}

fn text(data: &[u8]) -> String {
    let mut text = String::new();
    for byte in data {
        match byte {
            0..=127 => text.push(char::from(*byte)),
            _ => text.push_str(WORDS[usize::from(*byte) % WORDS.len()]),
        }
    }
    text
}

fn check_cluster(spec: &ClusterSpec) {
    assert_eq!(spec.validate(), Ok(()));
    let nodes = spec.nodes.len();
    assert!((1..=MOST_NODES).contains(&nodes), "{nodes} nodes");
    let written = spec.to_toml().expect("a cluster file is Unicode");
    let again = ClusterSpec::parse(&written, Path::new(FILE));
    assert_eq!(again.as_ref(), Ok(spec), "{written}");
    for host in spec.hosts_to_choose() {
        let part = spec.on_host(host).expect("one of its hosts");
        assert!(part.nodes.len() <= nodes && part.hosts_to_choose().is_empty());
    }
}

fn check_config(config: &Config) {
    assert_eq!(config.check(), Ok(()));
    let written = toml::to_string(config).expect("a configuration file is Unicode");
    let again = Config::parse(&written, Path::new(FILE));
    assert_eq!(again.as_ref(), Ok(config), "{written}");
    // A network that is checked can be laid out.
    assert!(config.network_plan().is_ok(), "{written}");
}

/// An error names a location that the file has.
fn check_error(text: &str, error: &ConfigError) {
    let message = error.to_string();
    let location = message.strip_prefix(FILE).and_then(|rest| {
        let mut numbers = rest.strip_prefix(':')?.splitn(3, ':');
        let line: usize = numbers.next()?.parse().ok()?;
        let column: usize = numbers.next()?.parse().ok()?;
        Some((line, column))
    });
    let Some((line, column)) = location else {
        panic!("no location: {message}");
    };
    let lines = text.matches('\n').count() + 1;
    assert!((1..=lines).contains(&line) && column >= 1, "{message}");
}
