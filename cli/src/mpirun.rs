//! `qnic mpirun`: runs an MPI program on the guests of a cluster.

use std::ffi::OsString;
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::{Args, ValueEnum};
use qnic_cluster::{
    Cancel, Cluster, Error, GuestEvent, GuestInput, GuestProcess, Mpi, MpiTransport,
};
use qnic_images::{cancelled_by, Cache, Provisioner};
use qnic_trials::{Lines, Program};
use tempfile::TempDir;

use crate::run::{code_of, seconds, variable, TIMED_OUT};
use crate::ui::{self, ClusterOption};

/// Longest time that mpirun has to end the ranks, until it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// Numbers of signals in a guest.
const SIGKILL: u8 = 9;
const SIGTERM: u8 = 15;

/// Options of `qnic mpirun`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic up examples/mpi.toml
  cargo qnic mpirun -n 8 examples/mpi/exchange.c     compile it, and run it as eight ranks
  cargo qnic mpirun -n 4 ./my-program --steps 100    a file of this machine, copied to the nodes
  cargo qnic mpirun -n 2 NPopenmpi -u 65536          a program of the guests
  cargo qnic mpirun -n 2 --over tcp NPopenmpi -u 65536
  cargo qnic mpirun -n 2 --mca mtl_base_verbose 10 hostname

The cluster file says mpi = true. PROGRAM with a slash in it is a file of this machine: a
program that is linked with the distribution's Open MPI, or a source file in C, *.c, which this
machine's cc compiles for it. guest:PATH is one of the guest's, and a plain name is looked up
there. Ranks go round the nodes. The first node starts them by the distribution's mpirun; their
messages go over the NICs by libfabric.

Ctrl-C and the timeout end all ranks. If a rank is killed, or a guest does not answer for 5 to
13 s, all end with an error.

Exit status: mpirun's: 0 if all ranks returned 0, else the code of the first that failed, or
128 + n if signal n ended it; 1 also if mpirun returned 0 although rank 0 did not; 127 if the
guests have no such program. Besides:
  124      the time was over
  125      it could not be carried out: no cluster, no MPI in it, a guest does not answer, …
  130      interrupted")]
pub(crate) struct Options {
    /// How many ranks; one on each node without this
    #[arg(long = "ranks", short = 'n', value_name = "COUNT")]
    ranks: Option<NonZero<usize>>,
    /// What carries their messages
    #[arg(long, default_value = "nic")]
    over: Over,
    /// A parameter of Open MPI, as mpirun takes it
    #[arg(long, num_args = 2, value_names = ["NAME", "VALUE"])]
    mca: Vec<String>,
    /// Set a variable in the program's environment
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// End the ranks after this many seconds
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    #[command(flatten)]
    cluster: ClusterOption,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Over {
    /// The NICs
    Nic,
    /// TCP over the Ethernet ports, to compare with
    Tcp,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let code = try_run(options).unwrap_or_else(|error| code_of(&error));
    Ok(ExitCode::from(code))
}

fn try_run(options: &Options) -> Result<u8> {
    let cancel = Cancel::on_signals()?;
    let made = tempfile::tempdir().context("make a directory")?;
    let cluster = options.cluster.find(Some(&cancel))?;
    let mpi = cluster.mpi()?;
    let program = program(&options.program, &made, &cancel)?;
    mpi.set_up()?;
    copy(&mpi, &program)?;
    drop(made);
    // An interrupt reaches mpirun, which ends the ranks, and not the wait for it.
    let cluster = Cluster::find(&ui::runtime()?, Some(cluster.name()), None)?;
    start(options, &cluster.mpi()?, &program, cancel)
}

/// The program that the words mean. One in C is compiled into the directory `made`.
fn program(words: &[OsString], made: &TempDir, cancel: &Cancel) -> Result<Program> {
    let mut words = words.to_vec();
    let first = words.first_mut().context("there is no program")?;
    let source = Path::new(first.as_os_str());
    let is_source =
        source.extension().is_some_and(|it| it == "c") && source.components().count() > 1;
    if let Some(name) = source.file_stem().filter(|_| is_source) {
        let program = made.path().join(name);
        let provisioner = Provisioner::new(Cache::of_user()?, ui::progress());
        let compile = || provisioner.compile_mpi(source, &program);
        match cancelled_by(&[cancel.as_fd()], compile)? {
            Err(qnic_images::Error::Cancelled) => return Err(Error::Interrupted.into()),
            compiled => compiled?,
        }
        *first = program.into();
    }
    Program::find(&words).map_err(anyhow::Error::msg)
}

/// Copies the program to all nodes, if it is a file of this machine.
fn copy(mpi: &Mpi<'_>, program: &Program) -> Result<()> {
    let Some((from, to)) = program.copy() else {
        return Ok(());
    };
    std::thread::scope(|scope| {
        let nodes = mpi.nodes().iter();
        let copies: Vec<_> = nodes
            .map(|node| scope.spawn(|| node.put(from, to, &|_| {})))
            .collect();
        let mut ended = copies.into_iter().map(|copy| copy.join());
        ended.try_for_each(|ended| match ended {
            Ok(copied) => Ok(copied?),
            Err(_) => bail!("the copy panicked"),
        })
    })
}

fn start(options: &Options, mpi: &Mpi<'_>, program: &Program, cancel: Cancel) -> Result<u8> {
    let ranks = options.ranks.or(NonZero::new(mpi.nodes().len()));
    let ranks = ranks.context("the cluster has no nodes")?;
    let over = match options.over {
        Over::Nic => MpiTransport::Nic,
        Over::Tcp => MpiTransport::Tcp,
    };
    let mut words = Vec::new();
    for pair in options.mca.chunks_exact(2) {
        words.extend(["--mca".to_owned(), pair[0].clone(), pair[1].clone()]);
    }
    for (name, value) in &options.env {
        words.extend(["-x".to_owned(), format!("{name}={value}")]);
    }
    let command = mpi.command(ranks, over, &words, &program.command());
    let mut process = mpi.first()?.spawn(&command)?;
    // It is told when this function returns.
    let (_ends, ended) = channel::<()>();
    let input = process.input();
    let interrupts = cancel.clone();
    // It waits for an interrupt that may never come: it ends with the program.
    std::thread::spawn(move || end_on(&interrupts, &input, &ended));
    let code = watch(&mut process, options.timeout).inspect_err(|_| end(&mut process))?;
    Ok(match cancel.is_cancelled() {
        true => ui::INTERRUPTED,
        false => code,
    })
}

/// Ends mpirun, which ends the ranks.
fn end(process: &mut GuestProcess) {
    let deadline = Instant::now() + GRACE;
    // A guest that is gone needs no signal.
    let _ = process.signal(SIGTERM);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match process.next_event(Some(left)) {
            Ok(Some(GuestEvent::Exit(_)) | None) | Err(_) => return,
            Ok(Some(_)) => {}
        }
    }
}

/// Ends mpirun when `cancel` is pulled, and this process if its guest does not answer.
fn end_on(cancel: &Cancel, input: &GuestInput, ended: &Receiver<()>) {
    cancel.wait();
    // A guest that is gone needs no signal.
    let _ = input.signal(SIGTERM);
    let _ = ended.recv_timeout(GRACE);
    let _ = input.signal(SIGKILL);
    if ended.recv_timeout(GRACE) == Err(RecvTimeoutError::Timeout) {
        eprintln!("qnic: mpirun: the first node does not answer: ranks may be left");
        std::process::exit(ui::INTERRUPTED.into());
    }
}

/// Shows what the ranks say, until mpirun has ended; the exit status.
fn watch(process: &mut GuestProcess, limit: Option<Duration>) -> Result<u8> {
    let (mut to_out, mut to_err) = (io::stdout(), io::stderr());
    let (mut out, mut err) = (Lines::new(""), Lines::new(""));
    let mut deadline = limit.map(|limit| Instant::now() + limit);
    let mut is_over = false;
    let code = loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match process.next_event(left)? {
            Some(GuestEvent::Stdout(bytes)) => {
                out.write(&bytes, &mut to_out).map_err(Error::Output)?;
            }
            Some(GuestEvent::Stderr(bytes)) => {
                err.write(&bytes, &mut to_err).map_err(Error::Output)?;
            }
            Some(GuestEvent::Exit(exit)) => break exit.code(),
            None if is_over => break TIMED_OUT,
            None => {
                is_over = true;
                process.signal(SIGTERM)?;
                deadline = Some(Instant::now() + GRACE);
            }
        }
    };
    out.finish(&mut to_out).map_err(Error::Output)?;
    err.finish(&mut to_err).map_err(Error::Output)?;
    if !is_over {
        return Ok(code);
    }
    let seconds = limit.unwrap_or_default().as_secs_f32();
    eprintln!("qnic: mpirun: ended after {seconds} s");
    Ok(TIMED_OUT)
}
