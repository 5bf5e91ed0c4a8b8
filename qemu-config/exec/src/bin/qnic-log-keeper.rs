//! `qnic-log-keeper PID[,PID...] FILE...`: keeps the logs of these processes small, until all of
//! them have ended.
//!
//! It runs beside a cluster from its boot to its end, because the program that booted it may be
//! gone by then. Exit status: 0; 1 if a file cannot be watched, 2 for a wrong command line.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use qnic_exec::log::{share, Log};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fstatvfs, inotify};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

/// Time between two looks at the logs: a console is written byte by byte.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let pids = arguments.first().and_then(|pids| pids_in(pids.to_str()?));
    let Some(pids) = pids else {
        eprintln!("usage: qnic-log-keeper PID[,PID...] FILE...");
        return ExitCode::from(2);
    };
    match keep(&pids, &arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("qnic-log-keeper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn pids_in(list: &str) -> Option<Vec<Pid>> {
    let pid = |number: &str| Pid::from_raw(number.parse().ok()?);
    list.split(',').map(pid).collect()
}

fn keep(pids: &[Pid], paths: &[OsString]) -> io::Result<()> {
    let mut writers = Vec::new();
    for pid in pids {
        match pidfd_open(*pid, PidfdFlags::empty()) {
            Ok(writer) => writers.push(writer),
            // It has ended.
            Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    let mut logs = Vec::new();
    for path in paths {
        inotify::add_watch(&changes, path, inotify::WatchFlags::MODIFY)?;
        let file = File::options().append(true).open(path)?;
        let system = fstatvfs(&file)?;
        let bytes = share(paths.len(), system.f_blocks.saturating_mul(system.f_frsize));
        logs.push(Log::new(file, bytes));
    }
    loop {
        forget(&changes);
        for log in &mut logs {
            // A log that cannot be made smaller is tried again when it has grown.
            let _ = log.trim();
        }
        if writers.is_empty() {
            return Ok(());
        }
        wait(&mut writers, None, Some(&PAUSE))?;
        wait(&mut writers, Some(&changes), None)?;
    }
}

/// Waits until a writer has ended, which is removed from `writers`, until a log has changed, or
/// until `limit` is over.
fn wait(
    writers: &mut Vec<OwnedFd>,
    changes: Option<&OwnedFd>,
    limit: Option<&Timespec>,
) -> io::Result<()> {
    if writers.is_empty() {
        return Ok(());
    }
    let watched = writers.iter().chain(changes);
    let mut watched: Vec<_> = watched
        .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
        .collect();
    match poll(&mut watched, limit) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ended: Vec<_> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
    let mut ended = ended.into_iter();
    writers.retain(|_| !ended.next().unwrap_or(false));
    Ok(())
}

/// Forgets that logs have changed, so that the next change is noticed.
fn forget(changes: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(changes, &mut buffer);
    while events.next().is_ok() {}
}
