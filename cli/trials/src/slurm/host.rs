//! The task of one host: its part of the cluster, from the boot to the end.
//!
//! ```text
//!   Hello ─▶ Names ─▶ Address ─▶ Hosts ─▶ boot ─▶ Reached ─▶ Go ─▶ program, or wait ─▶ Done
//!   stdin ends, at any time ─▶ everything is taken down ─▶ Done
//! ```

use std::io::{self, BufRead};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::{Gate, Program, Screen, Step, Stream, Trial, Verdict};
use anyhow::{bail, Context, Result};
use qnic_cluster::{BootOptions, Broken, Cancel, Cluster, ClusterSpec, Mode, Progress, Runtime};

use crate::slurm::engine::cluster_name;
use crate::slurm::job::{host_name, hosts, Job, JobDir, Work};
use crate::slurm::messages::{write, Report, Said, Told};

/// Runs the task of this host. Returns when nothing of it is left, and the supervisor knows how it went.
///
/// # Errors
/// Returns an error if there is no supervisor to tell it.
pub fn run(dir: &Path) -> Result<()> {
    let number = |name: &str| -> Result<u32> {
        let text = std::env::var(name).with_context(|| format!("{name}: only srun starts this"))?;
        text.parse().with_context(|| format!("{name}={text}"))
    };
    let index = number("SLURM_PROCID")? as usize;
    let id = number("SLURM_JOB_ID")?;
    let dir = JobDir::open(dir);
    let line = Arc::new(Line::new(index)?);
    let host = std::env::var("SLURMD_NODENAME").context("SLURMD_NODENAME")?;
    line.say(&Said::Hello { host, job: id });
    let task = Task {
        job: dir.read()?,
        dir,
        index,
        id,
        line: Arc::clone(&line),
    };
    let report = task
        .run()
        .unwrap_or_else(|error| match line.over.is_cancelled() {
            true => of_verdict(&Verdict::Interrupted),
            false => of_verdict(&Verdict::Impossible(format!("{error:#}"))),
        });
    line.say(&Said::Done(report));
    Ok(())
}

/// What joins this task with its supervisor.
struct Line {
    host: usize,
    /// Pulled when the supervisor, or Slurm, ends the task.
    over: Cancel,
    names: Answer<Vec<String>>,
    hosts: Answer<Vec<SocketAddr>>,
    booted: Answer<()>,
    ran: Answer<()>,
}

/// Something that comes once.
struct Answer<T> {
    value: OnceLock<T>,
    is_there: Cancel,
}

impl<T: Clone> Answer<T> {
    fn new() -> io::Result<Self> {
        Ok(Self {
            value: OnceLock::new(),
            is_there: Cancel::new()?,
        })
    }

    fn set(&self, value: T) {
        // It comes once; another changes nothing.
        let _ = self.value.set(value);
        self.is_there.cancel();
    }

    /// Waits until it is there; `None` if `cancel` is pulled before.
    fn wait(&self, cancel: &Cancel) -> Option<T> {
        self.is_there.wait_before(cancel);
        self.value.get().cloned()
    }
}

impl Line {
    fn new(host: usize) -> Result<Self> {
        Ok(Self {
            host,
            // Slurm sends several before it kills.
            over: Cancel::on_repeated_signals()?,
            names: Answer::new()?,
            hosts: Answer::new()?,
            booted: Answer::new()?,
            ran: Answer::new()?,
        })
    }

    fn say(&self, said: &Said) {
        // The end of the supervisor shows at the input, too.
        let _ = write(self.host, said, &mut io::stdout().lock());
    }

    /// Hears what the supervisor says, to its end.
    fn hear(&self) {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Told::Names(names)) => self.names.set(names),
                Ok(Told::Hosts(hosts)) => self.hosts.set(hosts),
                Ok(Told::Go(Step::Booted)) => self.booted.set(()),
                Ok(Told::Go(Step::Ran)) => self.ran.set(()),
                // Only a broken supervisor says anything else: without it there is no job.
                Err(_) => break,
            }
        }
        self.over.cancel();
    }
}

impl Gate for Line {
    fn pass(&self, step: Step, cancel: &Cancel) -> bool {
        self.say(&Said::Reached(step));
        let answer = match step {
            Step::Booted => &self.booted,
            Step::Ran => &self.ran,
        };
        answer.wait(cancel).is_some()
    }
}

impl Screen for Line {
    fn show(&self, node: &str, stream: Stream, bytes: &[u8]) {
        self.say(&Said::output(node, stream, bytes));
    }
}

impl Progress for Line {
    fn step(&self, message: &str) {
        self.say(&Said::Progress(message.to_owned()));
    }

    fn bytes(&self, _done: u64, _total: u64) {}

    fn node(&self, node: &str, state: &str) {
        self.say(&Said::Progress(format!("{node}: {state}")));
    }
}

struct Task {
    job: Job,
    dir: JobDir,
    index: usize,
    id: u32,
    line: Arc<Line>,
}

impl Task {
    fn run(&self) -> Result<Report> {
        let line = Arc::clone(&self.line);
        // It waits for input that may never come: it ends with the process.
        std::thread::spawn(move || line.hear());
        let spec = self.spec()?;
        let runtime = Runtime::from_env()?;
        qnic_cluster::sweep(&runtime)?;
        match &self.job.work {
            Work::Hold => self.hold(spec, runtime),
            Work::Program { .. } => self.run_program(spec, runtime),
        }
    }

    /// The part of the cluster that this host boots.
    fn spec(&self) -> Result<ClusterSpec> {
        let (mut spec, over) = (self.job.spec()?, &self.line.over);
        if self.job.parts.len() == 1 {
            return Ok(spec);
        }
        let ended = "the job was ended";
        let names = self.line.names.wait(over).context(ended)?;
        let address = own_address(&names, self.index)?;
        // Until the device process has the port, another program of this host may take it: then the boot fails.
        let free = UdpSocket::bind((address, 0)).context("find a free port")?;
        self.line.say(&Said::Address(free.local_addr()?));
        let addresses = self.line.hosts.wait(over).context(ended)?;
        let network = spec.network.get_or_insert_default();
        network.hosts = hosts(&self.dir, &self.job.parts, &addresses);
        Ok(spec
            .on_host(&host_name(self.index))
            .map_err(qnic_cluster::Error::from)?)
    }

    fn run_program(&self, spec: ClusterSpec, runtime: Runtime) -> Result<Report> {
        let Work::Program {
            words,
            on,
            timeout,
            artifacts,
            capture,
            settings,
        } = &self.job.work
        else {
            bail!("there is no program");
        };
        let settings = settings.iter().map(|text| text.parse());
        let settings: Result<Vec<_>, String> = settings.collect();
        let kept = |above: &std::path::PathBuf| above.join(host_name(self.index));
        let trial = Trial {
            spec,
            settings: settings.map_err(anyhow::Error::msg)?,
            program: Program::find(words).map_err(anyhow::Error::msg)?,
            on: on.clone(),
            timeout: *timeout,
            boot_timeout: self.job.boot_timeout,
            artifacts: artifacts.as_ref().map(kept),
            capture: *capture,
            cell: None,
            host: !self.job.guests,
            runtime,
            progress: Arc::clone(&self.line) as Arc<dyn Progress>,
            gate: Some(Arc::clone(&self.line) as Arc<dyn Gate>),
        };
        let outcome = trial.run(&self.line.over, self.line.as_ref());
        Ok(of_verdict(&outcome.verdict))
    }

    fn hold(&self, mut spec: ClusterSpec, runtime: Runtime) -> Result<Report> {
        spec.name = cluster_name(&self.job.name, self.id, self.index);
        let options = BootOptions {
            runtime,
            cancel: Some(self.line.over.clone()),
            progress: Arc::clone(&self.line) as Arc<dyn Progress>,
            ready_limit: self.job.boot_timeout,
            host: !self.job.guests,
            ..BootOptions::new(Mode::Attached)?
        };
        let cluster = Cluster::boot(&spec, &options)?;
        let over = &self.line.over;
        let broken = match self.line.pass(Step::Booted, over) {
            true => cluster.wait_broken(over),
            false => Ok(None),
        };
        let ended = cluster.end();
        let verdict = match broken? {
            None => Verdict::Passed,
            Some(Broken::Panicked { node }) => Verdict::Panicked(node),
            Some(Broken::Failed(error)) => Verdict::Impossible(error.to_string()),
        };
        ended?;
        Ok(of_verdict(&verdict))
    }
}

fn of_verdict(verdict: &Verdict) -> Report {
    let node = match verdict {
        Verdict::Failed { node, .. } | Verdict::NotStarted { node, .. } => Some(node.clone()),
        _ => None,
    };
    Report {
        status: verdict.status(),
        node,
        text: verdict.to_string(),
    }
}

/// The address of this host, of those `names`, to which the others send: that which it has towards one of them. Its
/// own name may stand for a loopback address here.
fn own_address(names: &[String], index: usize) -> Result<IpAddr> {
    let others = names
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != index);
    let mut error = None;
    for (_, name) in others {
        match towards(name) {
            Ok(address) => return Ok(address),
            Err(failed) => error = Some(format!("{name}: {failed}")),
        }
    }
    bail!(
        "no other host of the job is reached: {}",
        error.unwrap_or_default()
    )
}

fn towards(name: &str) -> io::Result<IpAddr> {
    let mut last = io::Error::other("it has no address");
    for address in (name, 9).to_socket_addrs()? {
        let any: IpAddr = match address {
            SocketAddr::V4(_) => [0; 4].into(),
            SocketAddr::V6(_) => [0_u16; 8].into(),
        };
        // This sends nothing: the kernel chooses the way, and with it the address.
        let socket = UdpSocket::bind((any, 0))?;
        match socket.connect(address).and_then(|()| socket.local_addr()) {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_address_that_leads_to_another() {
        let names = ["no.such.host.invalid", "127.0.0.1", "::1"].map(str::to_owned);
        assert_eq!(
            own_address(&names[..2], 0).unwrap(),
            IpAddr::from([127, 0, 0, 1])
        );
        let error = own_address(&names[..1], 0).unwrap_err().to_string();
        assert!(error.contains("no other host"), "{error}");
        let error = own_address(&names[..2], 1).unwrap_err().to_string();
        assert!(error.contains("no.such.host.invalid"), "{error}");
    }
}
