//! The peer of messages: libfabric's `fi_pingpong`, over its provider for shared memory or for TCP.
//!
//! ```text
//!   server ◄── shared memory ──► client, which prints a row:
//!   bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
//! ```
//! There both spin on the same memory, and nobody stands between them. `usec/xfer` is half a round
//! trip, the mean of all; the rate beside it has two digits, so it is not used. A client that comes before
//! its server ends with ECONNREFUSED.

use std::sync::Arc;

use anyhow::{Context, Result};
use qnic_images::{Cache, Program, Provisioner, Silent};
use rustix::io::Errno;

use super::two_programs::TwoPrograms;

/// How the program gets here by hand.
const INSTALL: &str = "apt-get install libfabric-bin";

/// What measures over one of libfabric's providers, or why nothing does.
pub(super) struct Peer {
    program: Result<Program, String>,
    provider: &'static str,
}

impl Peer {
    /// Finds the program, or installs it in the cache.
    pub(super) fn find(provider: &'static str) -> Self {
        let found = || -> Result<Program> {
            let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
            Ok(provisioner.fi_pingpong()?)
        };
        Peer {
            program: found().map_err(|error| format!("{error:#}; by hand: {INSTALL}")),
            provider,
        }
    }

    /// Half a round trip of so many bytes in microseconds: the mean of so many. `None` if there is
    /// nothing that measures it; the first reason is kept, and nothing is tried again.
    pub(super) fn half_round_trip(&mut self, size: usize, count: u64) -> Option<f64> {
        let program = self.program.as_ref().ok()?;
        match run(program, self.provider, size, count) {
            Ok(us) => Some(us),
            Err(error) => {
                self.program = Err(format!("{error:#}"));
                None
            }
        }
    }

    /// Why it measures nothing.
    pub(super) fn missing(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }
}

fn run(program: &Program, provider: &'static str, size: usize, count: u64) -> Result<f64> {
    let (size_text, count) = (size.to_string(), count.to_string());
    let words = |more: &[&str]| {
        let kind = ["-p", provider, "-e", "rdm", "-m", "tagged"];
        let how = ["-S", &size_text, "-I", &count];
        let all = [&kind[..], &how[..], more].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let programs = TwoPrograms {
        name: "fi_pingpong",
        program,
        environment: &[],
        server: &|port| words(&["-B", port]),
        client: &|port| words(&["-P", port, "127.0.0.1"]),
        refused: |status, _| status.code() == Some(Errno::CONNREFUSED.raw_os_error()),
    };
    parse(&programs.run()?, size)
}

/// Reads microseconds of half a round trip from what the client prints.
fn parse(text: &str, size: usize) -> Result<f64> {
    let mut lines = text.lines().map(|line| line.split_whitespace());
    let found = lines.by_ref().find_map(|mut head| {
        let bytes = head.next().filter(|word| *word == "bytes");
        bytes.and_then(|_| head.position(|word| word == "usec/xfer"))
    });
    let row = found.zip(lines.next()).and_then(|(place, mut row)| {
        row.next().filter(|word| *word == shown(size))?;
        row.nth(place)?.parse().ok()
    });
    row.with_context(|| format!("fi_pingpong says nothing about {size} bytes: {text:?}"))
}

/// How the program shows a number of bytes.
fn shown(size: usize) -> String {
    match size {
        0..0x400 => size.to_string(),
        0x400..0x10_0000 => format!("{}k", size >> 10),
        _ => format!("{}m", size >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What version 1.17.0 printed.
    const HEAD: &str =
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n";
    const TINY: &str =
        "8       1k      =1k      15k         0.15s      0.11      72.84       0.01\n";
    const LONG: &str =
        "1m      256     =256     512m        2.70s    198.53    5281.78       0.00\n";

    #[test]
    fn half_round_trips_are_read() {
        assert_eq!(parse(&format!("{HEAD}{TINY}"), 8).unwrap(), 72.84);
        assert_eq!(parse(&format!("{HEAD}{LONG}"), 1 << 20).unwrap(), 5281.78);
        let behind = format!("a warning\n{HEAD}{TINY}");
        assert_eq!(parse(&behind, 8).unwrap(), 72.84);
    }

    #[test]
    fn what_is_no_row_of_that_size_is_none() {
        for text in ["", HEAD, TINY, &format!("{HEAD}{LONG}")] {
            let error = parse(text, 8).unwrap_err().to_string();
            assert!(error.contains("nothing about 8 bytes"), "{error}");
        }
        assert!(parse(&format!("{HEAD}8       1k      =1k"), 8).is_err());
    }

    #[test]
    fn a_program_that_fails_is_asked_once_and_says_why() {
        let program = Program {
            program: "/bin/false".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let mut peer = Peer {
            program: Ok(program),
            provider: "shm",
        };
        assert_eq!(peer.missing(), None);
        assert_eq!(peer.half_round_trip(8, 1), None);
        let why = peer.missing().unwrap().to_owned();
        assert!(why.contains("ended with exit status: 1"), "{why}");
        assert_eq!(peer.half_round_trip(8, 1), None);
        assert_eq!(peer.missing(), Some(&*why));
    }
}
