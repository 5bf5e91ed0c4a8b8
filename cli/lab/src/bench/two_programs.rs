//! A measurement that takes two programs of this machine: a server, and a client that prints what
//! it has measured.
//!
//! Nothing says when the server listens. A client that comes too early is refused, and another one
//! is started.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::spawn_bound;
use qnic_images::Program;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// Longest time for one measurement.
const LIMIT: Duration = Duration::from_secs(60);

/// How the two are started; each list of words is behind those of the program itself.
pub(super) struct TwoPrograms<'a> {
    /// Its name in errors.
    pub(super) name: &'static str,
    pub(super) program: &'a Program,
    pub(super) environment: &'a [(&'static str, &'static str)],
    /// Words of the server that listens on a port, and of the client that connects to it.
    pub(super) server: &'a dyn Fn(&str) -> Vec<String>,
    pub(super) client: &'a dyn Fn(&str) -> Vec<String>,
    /// Says that a client ended as there was no server yet, by its status and its complaints.
    pub(super) refused: fn(ExitStatus, &str) -> bool,
}

/// A program that ends with this object.
struct Ends(&'static str, Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // Either call fails only if it has ended already.
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}

impl Ends {
    /// Waits until it ends. Returns how, and what it has printed and complained about: a few
    /// lines, for which its pipes have room.
    fn end(&mut self, deadline: Instant) -> Result<(ExitStatus, String, String)> {
        let Ends(name, child) = self;
        while child.try_wait()?.is_none() {
            let fd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left)?;
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => bail!("{name} has not ended within {LIMIT:?}"),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).with_context(|| format!("wait for {name}")),
            }
        }
        let status = child.wait()?;
        let (mut text, mut errors) = (String::new(), String::new());
        if let Some(mut output) = child.stdout.take() {
            output.read_to_string(&mut text)?;
        }
        if let Some(mut output) = child.stderr.take() {
            output.read_to_string(&mut errors)?;
        }
        Ok((status, text, errors))
    }
}

impl TwoPrograms<'_> {
    fn start(&self, words: Vec<String>) -> Result<Ends> {
        let mut command = self.program.command();
        command.args(words).envs(self.environment.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn_bound(command).with_context(|| format!("start {}", self.name))?;
        Ok(Ends(self.name, child))
    }

    /// Runs both; what the client has printed.
    pub(super) fn run(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
        let port = listener.local_addr()?.port().to_string();
        drop(listener);
        let deadline = Instant::now() + LIMIT;
        let mut server = self.start((self.server)(&port))?;
        loop {
            let mut client = self.start((self.client)(&port))?;
            let (status, text, errors) = client.end(deadline)?;
            if status.success() {
                return Ok(text);
            }
            let said = [text.trim(), errors.trim()].join(" ");
            ensure!(
                (self.refused)(status, &said),
                "{} ended with {status}: {}",
                self.name,
                said.trim()
            );
            // The server does not listen yet, or never will.
            if server.1.try_wait()?.is_some() {
                let (status, _, errors) = server.end(deadline)?;
                bail!("its server ended with {status}: {}", errors.trim());
            }
            ensure!(
                Instant::now() < deadline,
                "its server does not listen within {LIMIT:?}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that runs a line of the shell with the words of the measurement.
    fn shell(line: &str) -> Program {
        Program {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), line.into(), "sh".into()],
            env: Vec::new(),
        }
    }

    fn run(line: &str) -> Result<String> {
        let programs = TwoPrograms {
            name: "it",
            program: &shell(line),
            environment: &[("WORD", "hello")],
            server: &|_| vec!["server".into()],
            client: &|_| vec!["client".into()],
            refused: |status, _| status.code() == Some(111),
        };
        programs.run()
    }

    #[test]
    fn a_client_that_is_refused_is_followed_by_another_while_the_server_runs() {
        let tries = tempfile::NamedTempFile::new().unwrap();
        let tries = tries.path().display();
        let server = "case $1 in server) kill -STOP $$ ;; esac";
        let client = format!("printf x >> {tries}; test $(wc -c < {tries}) -gt 2 || exit 111");
        let text = run(&format!("{server}; {client}; echo $WORD")).unwrap();
        assert_eq!(text, "hello\n");
        let error = run("case $1 in server) exit 7 ;; esac; exit 111").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("server ended with exit status: 7"),
            "{error}"
        );
        let error = run("echo so it is; exit 3").unwrap_err().to_string();
        assert!(error.contains("status: 3: so it is"), "{error}");
    }
}
