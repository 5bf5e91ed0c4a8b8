//! How a process of a cluster ended, and whether the kernel ended it for want of memory.
//!
//! The status is known to its parent alone, that is, to the program that booted the cluster. The
//! kernel's log, where it may be read, names the processes that were ended for want of memory; the
//! control group of memory counts them.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::process::{waitid, Pid, Signal, WaitId, WaitIdOptions};

use crate::follow::readable;
use crate::process::ProcessId;

/// Most records of the kernel's log that are looked through.
const MOST_RECORDS: usize = 1 << 20;

/// What is known of the end of a process, in parentheses behind a space; empty if nothing is.
pub(crate) fn how(process: ProcessId) -> String {
    let signal = match status(process) {
        Some(Status::Exited(status)) => return format!(" (exit status {status})"),
        Some(Status::Killed(signal)) => Some(signal),
        None => None,
    };
    let killed = signal == Some(Signal::KILL.as_raw());
    let why = in_kernel_log(process.pid).or_else(|| in_control_group().filter(|_| killed));
    let signal = signal.map(|signal| match signal_hook::low_level::signal_name(signal) {
        Some(name) => format!("signal {signal}, {name}"),
        None => format!("signal {signal}"),
    });
    let known: Vec<_> = signal.into_iter().chain(why).collect();
    match known.is_empty() {
        true => String::new(),
        false => format!(" ({})", known.join(": ")),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Status {
    Exited(i32),
    Killed(i32),
}

/// The status of a child of this process, which stays to be waited for.
fn status(process: ProcessId) -> Option<Status> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(Pid::from_raw(process.pid)?), options).ok()??;
    let killed = ended.terminating_signal().map(Status::Killed);
    killed.or_else(|| ended.exit_status().map(Status::Exited))
}

/// What the kernel's log says of a process that was ended for want of memory.
fn in_kernel_log(pid: i32) -> Option<String> {
    let mut options = File::options();
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let log = options.read(true).custom_flags(nonblocking);
    let mut log = log.open("/dev/kmsg").ok()?;
    let mut found = None;
    let mut record = [0; 8192];
    for _ in 0..MOST_RECORDS {
        // A read is a record.
        match log.read(&mut record) {
            Ok(length) => found = killed_by(&record[..length], pid).or(found),
            // It was overwritten meanwhile.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    found
}

/// The message of a record, `6,1234,5678,-;message`, if it says that the kernel ended the process
/// for want of memory.
fn killed_by(record: &[u8], pid: i32) -> Option<String> {
    let text = readable(record);
    let (_, message) = text.lines().next()?.split_once(';')?;
    let killed = message.to_lowercase().contains("out of memory");
    let ours = message.contains(&format!("Killed process {pid} "));
    (killed && ours).then(|| format!("the kernel says: {message}"))
}

/// What the control group of this process, which is that of its children, says of its memory, if
/// processes were ended for want of it.
fn in_control_group() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|group| {
        let (events, limit) = files_of(group)?;
        let killed = killed_in(&fs::read_to_string(events).ok()?)?;
        let limit = fs::read_to_string(&limit).ok()?;
        let limit = limit.trim();
        Some(format!(
            "its control group has a limit of {limit} bytes of memory, for which the kernel has \
             ended {killed} processes"
        ))
    })
}

/// The files with the events and the limit of a group, a line of `/proc/self/cgroup`, if it is
/// one of memory.
fn files_of(group: &str) -> Option<(PathBuf, PathBuf)> {
    let mut parts = group.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let root = Path::new("/sys/fs/cgroup");
    let path = path.trim_start_matches('/');
    if number == "0" && controllers.is_empty() {
        let directory = root.join(path);
        return Some((
            directory.join("memory.events"),
            directory.join("memory.max"),
        ));
    }
    let directory = root.join("memory").join(path);
    let files = ["memory.oom_control", "memory.limit_in_bytes"].map(|name| directory.join(name));
    let [events, limit] = files;
    (controllers == "memory").then_some((events, limit))
}

/// How many processes were ended for want of memory, if any were.
fn killed_in(events: &str) -> Option<u64> {
    let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
    events.lines().find_map(count).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_status_of_a_child_is_told_and_stays() {
        for (script, told) in [
            ("kill -TERM $$", " (signal 15, SIGTERM)"),
            ("exit 3", " (exit status 3)"),
        ] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = child.id() as i32;
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(Pid::from_raw(pid).unwrap()), ended).unwrap();
            let process = ProcessId {
                pid,
                start_ticks: 0,
            };
            assert_eq!(how(process), told);
            assert!(!child.wait().unwrap().success());
            assert_eq!(how(process), "", "it is no child any more");
        }
    }

    #[test]
    fn the_kernel_names_the_process_that_it_has_ended() {
        let record =
            b"3,812,9161,-;Memory cgroup out of memory: Killed process 12 (qemu-system-x86) \
                       total-vm:9kB\n SUBSYSTEM=x\n";
        let said = killed_by(record, 12).unwrap();
        assert!(
            said.starts_with("the kernel says: Memory cgroup out of memory: Killed process 12 (q"),
            "{said}"
        );
        assert!(!said.contains("SUBSYSTEM"), "{said}");
        assert_eq!(killed_by(record, 1), None);
        assert_eq!(killed_by(b"6,1,2,-;usb 1-1: new device", 12), None);
    }

    #[test]
    fn both_versions_of_control_groups_count_what_was_ended() {
        let (events, limit) = files_of("0::/user.slice/a").unwrap();
        assert_eq!(
            events,
            Path::new("/sys/fs/cgroup/user.slice/a/memory.events")
        );
        assert_eq!(limit, Path::new("/sys/fs/cgroup/user.slice/a/memory.max"));
        let (events, _) = files_of("4:memory:/a:b").unwrap();
        assert_eq!(
            events,
            Path::new("/sys/fs/cgroup/memory/a:b/memory.oom_control")
        );
        assert_eq!(files_of("1:cpu:/"), None);
        assert_eq!(
            killed_in("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
            Some(2)
        );
        assert_eq!(
            killed_in("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
            None
        );
    }
}
