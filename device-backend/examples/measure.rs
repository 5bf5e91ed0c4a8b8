//! What the device process costs: `cargo run --release -p qnic-device --example measure`.
//!
//! Two test guests in this process and a device beside them; prints medians of the
//! doorbell path, the start, and the share of a core that an idle engine uses. The
//! engine and the spinning sender are kept on different cores, if there are two.

#[allow(dead_code)]
#[path = "../tests/guest/mod.rs"]
mod guest;

use std::time::{Duration, Instant};

use guest::{until, Guest, RAM_BYTES};
use procfs::process::{Process, Task};
use qnic_abi::{NodeId, Status};
use qnic_device::{ByteSize, Config, Device, NicSettings};
use rustix::process::Pid;
use rustix::thread::{sched_setaffinity, CpuSet};

const ROUNDS: u64 = 5_000;

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = |node: usize| directory.path().join(format!("{node}.sock"));
    let nic = |node: usize| {
        let name = format!("n{node}");
        NicSettings::new(name, NodeId(node as u16), socket(node), ByteSize(RAM_BYTES))
    };
    let device = Device::start(&Config::new((0..4).map(nic).collect())).expect("a device");
    let mut guests: Vec<Guest> = (0..4)
        .map(|node| Guest::connect(&socket(node), None))
        .collect();
    let started = Instant::now();
    for (guest, port) in guests.iter_mut().zip(10..) {
        guest.start();
        assert_eq!(guest.hello(), Status::Ok);
        guest.register(port);
    }
    println!(
        "start, hello, register, export: {:?} a guest",
        started.elapsed() / 4
    );

    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    pin(None, 0);
    pin(Pid::from_raw(engine_thread().tid), cores - 1);
    let (a, b) = (&guests[0], &guests[1]);
    let command = a.write_command(1, 11, 0, 8);
    let sleeps = || device.stats().expect("stats").report.engine.sleeps;
    let mut asleep = Vec::new();
    let mut awake = Vec::new();
    let mut rung = 0;
    for round in 0..ROUNDS {
        let quiet = round % 2 == 0;
        if quiet {
            until("sleep", || a.is_asleep());
            // The awake word is cleared a little before the engine sleeps.
            let settled = Instant::now();
            until("sleep", || settled.elapsed() > Duration::from_micros(30));
        }
        let start = Instant::now();
        rung += u64::from(a.issue(round, &command));
        until("the notification", || b.signals() == round + 1);
        let list = if quiet { &mut asleep } else { &mut awake };
        list.push(start.elapsed());
        until("the completion", || a.writes_done() == round + 1);
    }
    println!(
        "8-byte notifying write, engine asleep: {}",
        spread(&mut asleep)
    );
    println!(
        "8-byte notifying write, right after:   {}",
        spread(&mut awake)
    );
    println!("doorbells rung: {rung} of {ROUNDS}");

    let (before, sleeps_before) = (cpu_time(), sleeps());
    let window = Duration::from_secs(5);
    let idle = Instant::now();
    until("the end of the idle time", || {
        std::thread::park_timeout(window.saturating_sub(idle.elapsed()));
        idle.elapsed() >= window
    });
    let used = cpu_time() - before;
    println!(
        "idle for {window:?}: {used:?} of a core ({:.3} %), {} sleeps",
        100.0 * used.as_secs_f64() / window.as_secs_f64(),
        sleeps() - sleeps_before
    );
    let stats = device.stats().expect("stats");
    println!("own resident memory: {} KiB", stats.rss_anon_bytes >> 10);
    drop(guests);
    device.stop().expect("a clean end");
}

fn spread(list: &mut [Duration]) -> String {
    list.sort();
    let at = |share: f64| list[(list.len() as f64 * share) as usize];
    format!(
        "median {:?}, 90 % {:?}, 99 % {:?}",
        at(0.5),
        at(0.9),
        at(0.99)
    )
}

fn engine_thread() -> Task {
    let tasks = Process::myself().and_then(|process| process.tasks());
    let mut tasks = tasks.expect("/proc").flatten();
    let is_engine = |task: &Task| task.stat().is_ok_and(|stat| stat.comm == "engine");
    tasks.find(is_engine).expect("the engine thread")
}

/// Keeps a thread (`None`: this one) on one core.
fn pin(thread: Option<Pid>, core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(thread, &set).expect("affinity");
}

/// Processor time that the engine thread has used.
fn cpu_time() -> Duration {
    let statistics = engine_thread().schedstat().expect("schedstat");
    Duration::from_nanos(statistics.sum_exec_runtime)
}
