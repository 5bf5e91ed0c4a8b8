//! The peer of messages: libfabric's `fi_pingpong` over its provider for shared memory.
//!
//! ```text
//!   server ◄── shared memory ──► client, which prints a row:
//!   bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
//! ```
//! Both spin on the same memory, and nobody stands between them. `usec/xfer` is half a round trip,
//! the mean of all; the rate beside it has two digits, so it is not used.
//!
//! Nothing says when the server listens. A client that comes too early ends with ECONNREFUSED, and
//! another one is started.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::spawn_bound;
use qnic_images::{Cache, Program, Provisioner, Silent};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// Longest time for one size.
const LIMIT: Duration = Duration::from_secs(60);

/// How the program gets here by hand.
const INSTALL: &str = "apt-get install libfabric-bin";

/// What measures, or why nothing does.
pub(super) struct Peer(Result<Program, String>);

impl Peer {
    /// Finds the program, or installs it in the cache.
    pub(super) fn find() -> Self {
        let found = || -> Result<Program> {
            let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
            Ok(provisioner.fi_pingpong()?)
        };
        Peer(found().map_err(|error| format!("{error:#}; by hand: {INSTALL}")))
    }

    /// Half a round trip of so many bytes in microseconds: the mean of so many. `None` if there is
    /// nothing that measures it; the first reason is kept, and nothing is tried again.
    pub(super) fn half_round_trip(&mut self, size: usize, count: u64) -> Option<f64> {
        let program = self.0.as_ref().ok()?;
        match run(program, size, count) {
            Ok(us) => Some(us),
            Err(error) => {
                self.0 = Err(format!("{error:#}"));
                None
            }
        }
    }

    /// Why it measures nothing.
    pub(super) fn missing(&self) -> Option<&str> {
        self.0.as_ref().err().map(String::as_str)
    }
}

/// A program that ends with this object.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // Either call fails only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ends {
    /// Waits until it ends. Returns how, and what it has printed and complained about: a few
    /// lines, for which its pipes have room.
    fn end(&mut self, deadline: Instant) -> Result<(ExitStatus, String, String)> {
        while self.0.try_wait()?.is_none() {
            let fd = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty())?;
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left)?;
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => bail!("fi_pingpong has not ended within {LIMIT:?}"),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("wait for fi_pingpong"),
            }
        }
        let status = self.0.wait()?;
        let (mut text, mut errors) = (String::new(), String::new());
        if let Some(mut output) = self.0.stdout.take() {
            output.read_to_string(&mut text)?;
        }
        if let Some(mut output) = self.0.stderr.take() {
            output.read_to_string(&mut errors)?;
        }
        Ok((status, text, errors))
    }
}

fn run(program: &Program, size: usize, count: u64) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    let port = listener.local_addr()?.port().to_string();
    drop(listener);
    let start = |words: &[&str]| -> Result<Ends> {
        let mut command = program.command();
        command.args(["-p", "shm", "-e", "rdm", "-m", "tagged"]);
        command.args(["-S", &size.to_string(), "-I", &count.to_string()]);
        command.args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn_bound(command).context("start fi_pingpong")?;
        Ok(Ends(child))
    };
    let deadline = Instant::now() + LIMIT;
    let mut server = start(&["-B", &port])?;
    loop {
        let mut client = start(&["-P", &port, "127.0.0.1"])?;
        let (status, text, errors) = client.end(deadline)?;
        if status.success() {
            return parse(&text, size);
        }
        let refused = status.code() == Some(Errno::CONNREFUSED.raw_os_error());
        ensure!(
            refused,
            "fi_pingpong ended with {status}: {}",
            errors.trim()
        );
        // The server does not listen yet, or never will.
        if server.0.try_wait()?.is_some() {
            let (status, _, errors) = server.end(deadline)?;
            bail!("its server ended with {status}: {}", errors.trim());
        }
        ensure!(
            Instant::now() < deadline,
            "its server does not listen within {LIMIT:?}"
        );
    }
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

    /// A program that runs a line of the shell with the words of the measurement.
    fn shell(line: &str) -> Program {
        Program {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), line.into(), "sh".into()],
            env: Vec::new(),
        }
    }

    #[test]
    fn a_client_that_is_refused_is_followed_by_another_while_the_server_runs() {
        let tries = tempfile::NamedTempFile::new().unwrap();
        let tries = tries.path().display();
        let server = "case \"$*\" in *-B*) kill -STOP $$ ;; esac";
        let client = format!("printf x >> {tries}; test $(wc -c < {tries}) -gt 2 || exit 111");
        let rows = format!("printf '%s' '{HEAD}{TINY}'");
        let program = shell(&format!("{server}; {client}; {rows}"));
        assert_eq!(run(&program, 8, 1).unwrap(), 72.84);
        let gone = shell("case \"$*\" in *-B*) exit 7 ;; esac; exit 111");
        let error = run(&gone, 8, 1).unwrap_err().to_string();
        assert!(
            error.contains("server ended with exit status: 7"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_fails_is_asked_once_and_says_why() {
        let program = Program {
            program: "/bin/false".into(),
            args: Vec::new(),
            env: Vec::new(),
        };
        let mut peer = Peer(Ok(program));
        assert_eq!(peer.missing(), None);
        assert_eq!(peer.half_round_trip(8, 1), None);
        let why = peer.missing().unwrap().to_owned();
        assert!(why.contains("ended with exit status: 1"), "{why}");
        assert_eq!(peer.half_round_trip(8, 1), None);
        assert_eq!(peer.missing(), Some(&*why));
    }
}
