//! Fuzz targets: each is one function of bytes, which panics if a promise is broken (X8).
//!
//! ```text
//!   libFuzzer ──► targets/NAME.rs ──┐                  ┌──► NICs, device, links, parsers
//!   cargo test ─► tests/targets.rs ─┼─► NAME::run(data) │
//!   cargo qnic fuzz --input FILE ───┘        └─────────┴──► what must hold after any input
//! ```
//!
//! A target depends on nothing but its bytes: no clock, no chance. What it checks is more
//! than that nothing panics: see its module. `docs/fuzzing.md` says how to run them.
//!
//! | folder | what |
//! |---|---|
//! | `corpus/TARGET` | few small inputs that together reach what was reached |
//! | `regressions/TARGET` | inputs that once broke a promise; beside one that still does stands `NAME.why` |
//! | `targets` | the programs for libFuzzer, outside of the workspace |
#![forbid(unsafe_code)]

pub mod cluster_file;
pub mod commands;
pub mod control;
pub mod ethernet;
pub mod frames;
pub mod inputs;
pub mod mutation;
pub mod ring;
pub mod udp;
pub mod verbs;
pub mod vhost_user;

// The front end of the tests of the attachment; not all of it is of use here.
mod driver;
#[allow(dead_code)]
#[path = "../../../device-backend/tests/guest/mod.rs"]
mod front_end;
mod group_bodies;
mod guest;
mod guest_datagrams;
mod honest;
mod input;

/// A target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: that of its module, its folders and its program.
    pub name: &'static str,
    /// What it attacks.
    pub what: &'static str,
    /// Runs one input; panics if a promise is broken.
    pub run: fn(&[u8]),
    /// Longest input that is worth its time, in bytes.
    pub longest: usize,
    /// Mutated inputs that `cargo qnic test --all` runs; without `--all` it is half of them.
    pub mutations: usize,
}

/// All targets.
pub const TARGETS: [Target; 9] = [
    Target {
        name: "frames",
        what: "frames into a NIC in any state",
        run: frames::run,
        longest: 2048,
        mutations: 45_000,
    },
    Target {
        name: "commands",
        what: "command descriptors and SRAM windows",
        run: commands::run,
        longest: 2048,
        mutations: 27_000,
    },
    Target {
        name: "control",
        what: "requests of a guest's kernel",
        run: control::run,
        longest: 2048,
        mutations: 6000,
    },
    Target {
        name: "verbs",
        what: "rings, requests and frames of queue pairs",
        run: verbs::run,
        longest: 2048,
        mutations: 8000,
    },
    Target {
        name: "cluster_file",
        what: "cluster files and configuration files",
        run: cluster_file::run,
        longest: 2048,
        mutations: 350_000,
    },
    Target {
        name: "udp",
        what: "UDP datagrams before and after the handshake",
        run: udp::run,
        longest: 1024,
        mutations: 4000,
    },
    Target {
        name: "ring",
        what: "the ring in shared memory",
        run: ring::run,
        longest: 1024,
        mutations: 10_000,
    },
    Target {
        name: "vhost_user",
        what: "vhost-user messages and virtqueue chains",
        run: vhost_user::run,
        longest: 2048,
        mutations: 900,
    },
    Target {
        name: "ethernet",
        what: "virtqueues and frames of an Ethernet port",
        run: ethernet::run,
        longest: 1024,
        mutations: 400,
    },
];

impl Target {
    /// The target of that name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }
}
