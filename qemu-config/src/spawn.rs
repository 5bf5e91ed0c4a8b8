//! Starts the processes of a cluster.
//!
//! The kernel ends a process with its parent (`PR_SET_PDEATHSIG`) when the
//! *thread* that started it ends. So one thread, which lives as long as this
//! process does, starts them all.
//!
//! This is one of the two modules of the crate with `unsafe`: what runs between
//! fork and exec cannot be expressed otherwise.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{channel, Sender};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{
    getpid, getppid, set_parent_process_death_signal, setpriority_process, Pid, Signal,
};

struct Request {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

/// Starts `command` in a process group of its own; it ends at once when this process does, in
/// whatever way.
///
/// # Errors
/// Returns an error if it cannot be started.
pub fn spawn_bound(command: Command) -> io::Result<Child> {
    spawn(command, true, 0)
}

/// Starts `command` in a process group of its own, so that a terminal's Ctrl-C
/// reaches only us. If it `dies_with_us`, it ends at once when this process does; `nice`
/// is added to its niceness.
pub(crate) fn spawn(mut command: Command, dies_with_us: bool, nice: i32) -> io::Result<Child> {
    let parent = getpid();
    command.process_group(0);
    let prepare = move || in_child(dies_with_us, nice, parent);
    // SAFETY: `in_child` makes system calls only: it does not allocate, take locks
    // or touch anything that another thread of the parent may have left half-done.
    unsafe { command.pre_exec(prepare) };
    let (reply, answer) = channel();
    let gone = || io::Error::other("the thread that starts processes has ended");
    spawner()?
        .send(Request { command, reply })
        .map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn in_child(dies_with_us: bool, nice: i32, parent: Pid) -> io::Result<()> {
    if dies_with_us {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before that line: then nothing would end this one.
        if getppid() != Some(parent) {
            return Err(Errno::CHILD.into());
        }
    }
    if nice != 0 {
        setpriority_process(None, nice)?;
    }
    Ok(())
}

fn spawner() -> io::Result<&'static Sender<Request>> {
    static SPAWNER: OnceLock<Sender<Request>> = OnceLock::new();
    if let Some(sender) = SPAWNER.get() {
        return Ok(sender);
    }
    let (sender, requests) = channel::<Request>();
    std::thread::Builder::new()
        .name("spawner".into())
        .spawn(move || {
            for mut request in requests {
                // If the request was given up, the child has no use.
                if let Err(unwanted) = request.reply.send(request.command.spawn()) {
                    if let Ok(mut child) = unwanted.0 {
                        let _ = child.kill();
                        let _ = child.wait();
                    }
                }
            }
        })?;
    Ok(SPAWNER.get_or_init(|| sender))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessId;
    use crate::wait::Deadline;
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    #[test]
    fn a_child_has_its_niceness_and_a_group_of_its_own() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$; cut -d' ' -f5,19 /proc/$$/stat"])
            .stdout(Stdio::piped());
        let mut child = spawn(command, true, 10).unwrap();
        let mut output = String::new();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_to_string(&mut output).unwrap();
        assert!(child.wait().unwrap().success());
        let pid = output.lines().next().unwrap().to_owned();
        assert_eq!(output.lines().nth(1), Some(format!("{pid} 10").as_str()));
    }

    /// Set for the process that is to be killed.
    const VICTIM: &str = "QNIC_TEST_VICTIM";

    /// Runs this very test in a process of its own, kills that, and sees its child go.
    #[test]
    fn a_child_ends_with_a_parent_that_is_killed() {
        if std::env::var_os(VICTIM).is_some() {
            let mut command = Command::new("tail");
            command.args(["-f", "/dev/null"]);
            let mut child = spawn(command, true, 0).unwrap();
            println!("child {}", child.id());
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        let name = "spawn::tests::a_child_ends_with_a_parent_that_is_killed";
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim.args(["--exact", name, "--nocapture"]);
        victim.env(VICTIM, "1").stdin(Stdio::piped());
        let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(victim.stdout.take().unwrap());
        let pid = output.lines().map_while(Result::ok).find_map(|line| {
            let (_, pid) = line.split_once("child ")?;
            pid.trim().parse().ok()
        });
        let child = ProcessId::of(pid.unwrap()).unwrap().open().unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        child.wait(&Deadline::seconds(30)).unwrap();
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let error = spawn(Command::new("/nowhere/x"), false, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
