//! Clusters on Slurm (X16): what `exec --on slurm`, `up --on slurm`, and `down`, `ps`, `logs`, `stats` and `run` of such
//! clusters do, and the two commands that run in a job.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic_cluster::{BootOptions, Cancel, ClusterSpec, Mode};
use qnic_images::Cache;
use qnic_trials::slurm::{
    supervise, Capacity, Ending, Engine, Job, JobDir, Jobs, Plan, Request, Watching, Work,
};
use qnic_trials::{Quiet, Screen, Terminal};

use crate::ui::{self, ClusterOption};

/// The word for it on command lines.
pub(crate) const SLURM: &str = "slurm";
/// Between looks at a job that begins or ends.
const PAUSE: Duration = Duration::from_millis(300);
/// How long Slurm may take to end a job.
const END_LIMIT: Duration = Duration::from_secs(300);

/// Options of a job.
#[derive(Args)]
pub(crate) struct SlurmOptions {
    /// On Slurm: the partition, instead of the usual one
    #[arg(long, value_name = "NAME")]
    partition: Option<String>,
    /// On Slurm: when it ends the job at the latest, in its words, such as 30 for minutes or 1:00:00
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// On Slurm: how many hosts, instead of as few as carry the nodes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    hosts: Option<u16>,
    /// On Slurm: print which nodes run on which host, and start nothing
    #[arg(long)]
    dry_run: bool,
}

/// Options of the commands that run in a job.
#[derive(Args)]
pub(crate) struct InJobOptions {
    /// The directory of the job
    dir: PathBuf,
}

impl SlurmOptions {
    /// Checks that they are not given without Slurm.
    pub(crate) fn refuse(&self) -> Result<()> {
        let given = self.partition.is_some() || self.time.is_some() || self.hosts.is_some();
        ensure!(
            !given && !self.dry_run,
            "--partition, --time, --hosts and --dry-run go with --on slurm"
        );
        Ok(())
    }

    /// Divides `spec` among hosts.
    fn plan(&self, engine: Engine, spec: &ClusterSpec, guests: bool) -> Result<(Plan, Request)> {
        spec.validate()?;
        let network = spec.network.as_ref();
        let placed = network.is_some_and(|it| !it.hosts.is_empty() || !it.processes.is_empty());
        ensure!(
            !placed,
            "the cluster file says with [[network.host]] or [[network.process]] what runs where: leave that to Slurm"
        );
        let capacity = engine.capacity(self.partition.as_deref())?;
        // Slurm itself refuses more than any of its hosts has.
        let bound = match self.hosts {
            None => capacity,
            Some(_) => Capacity::default(),
        };
        let plan = Plan::new(spec, guests, self.hosts.map(usize::from), bound)?;
        let several = plan.parts().len() > 1;
        ensure!(
            !(spec.mpi && several),
            "mpirun does not start ranks on guests of several hosts yet: leave out mpi = true, or use --hosts 1"
        );
        let mut request = Request::new(&plan, capacity, format!("qnic-{}", spec.name));
        request.partition.clone_from(&self.partition);
        request.time.clone_from(&self.time);
        Ok((plan, request))
    }
}

fn jobs() -> Result<Jobs> {
    Ok(Jobs::in_cache(Cache::of_user()?.root()))
}

/// What all hosts boot from, made or fetched before the job begins.
fn prepare(spec: &ClusterSpec, guests: bool, cancel: &Cancel, dir: &JobDir) -> Result<()> {
    let options = BootOptions {
        cancel: Some(cancel.clone()),
        progress: ui::progress(),
        host: !guests,
        ..BootOptions::new(Mode::Attached)?
    };
    dir.keep_programs(&qnic_cluster::prepare(spec, &options)?)
}

/// What `exec` asks for.
pub(crate) struct Wanted<'a> {
    pub(crate) slurm: &'a SlurmOptions,
    /// Nodes are guests.
    pub(crate) guests: bool,
    pub(crate) boot_timeout: Duration,
    pub(crate) work: Work,
}

/// `exec --on slurm`. Returns the exit status.
pub(crate) fn exec(spec: &ClusterSpec, wanted: Wanted<'_>) -> Result<u8> {
    let engine = Engine::find()?;
    let (plan, request) = wanted.slurm.plan(engine, spec, wanted.guests)?;
    if wanted.slurm.dry_run {
        print!("{}", plan.describe());
        return Ok(0);
    }
    let dir = jobs()?.create_for_exec(&spec.name)?;
    let done = exec_in(&dir, spec, wanted, (engine, &plan, &request));
    let removed = dir.remove();
    let ending = done?;
    removed?;
    if ending.status != 0 {
        eprintln!("qnic: {}: {}", spec.name, ending.text);
    }
    Ok(ending.status)
}

fn exec_in(
    dir: &JobDir,
    spec: &ClusterSpec,
    wanted: Wanted<'_>,
    (engine, plan, request): (Engine, &Plan, &Request),
) -> Result<Ending> {
    let cancel = Cancel::on_signals()?;
    let one = matches!(wanted.work, Work::Program { on: Some(_), .. });
    let job = Job {
        name: spec.name.clone(),
        cluster: spec.to_toml()?,
        guests: wanted.guests,
        boot_timeout: wanted.boot_timeout,
        parts: dir.make_keys(plan)?,
        work: wanted.work,
    };
    dir.write(&job)?;
    prepare(spec, wanted.guests, &cancel, dir)?;
    let watching = OnTerminal(Terminal::new(!one && spec.nodes.len() > 1));
    let srun = engine.allocate(request, dir);
    let ending = supervise(srun, &job, engine, &cancel, &watching);
    watching.0.finish();
    ending
}

/// Shows all on the standard outputs.
struct OnTerminal(Terminal);

impl Watching for OnTerminal {
    fn screen(&self) -> &dyn Screen {
        &self.0
    }

    fn progress(&self, from: &str, line: &str) {
        eprintln!("{from}: {line}");
    }

    fn ready(&self, _hosts: &[String]) -> Result<()> {
        Ok(())
    }
}

/// `up --on slurm`: returns when all nodes are ready, or the job has ended.
pub(crate) fn up(
    spec: &ClusterSpec,
    slurm: &SlurmOptions,
    boot_timeout: Duration,
) -> Result<ExitCode> {
    let engine = Engine::find()?;
    let (plan, request) = slurm.plan(engine, spec, true)?;
    if slurm.dry_run {
        print!("{}", plan.describe());
        return Ok(ExitCode::SUCCESS);
    }
    let dir = jobs()?.create_for_up(&spec.name)?;
    match up_in(&dir, spec, boot_timeout, (engine, &plan, &request)) {
        Ok(hosts) => {
            println!("{}: ready on {}", spec.name, hosts.join(", "));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            // What has begun ends, whatever went wrong.
            end(engine, &dir)?;
            Err(error)
        }
    }
}

/// Returns the hosts, once all are ready.
fn up_in(
    dir: &JobDir,
    spec: &ClusterSpec,
    boot_timeout: Duration,
    (engine, plan, request): (Engine, &Plan, &Request),
) -> Result<Vec<String>> {
    let cancel = Cancel::on_signals()?;
    let job = Job {
        name: spec.name.clone(),
        cluster: spec.to_toml()?,
        guests: true,
        boot_timeout,
        parts: dir.make_keys(plan)?,
        work: Work::Hold,
    };
    dir.write(&job)?;
    prepare(spec, true, &cancel, dir)?;
    let id = engine.submit(request, dir)?;
    dir.set_id(id)?;
    eprintln!("slurm: job {id} is submitted");
    await_ready(engine, dir, id, &cancel)
}

fn await_ready(engine: Engine, dir: &JobDir, id: u32, cancel: &Cancel) -> Result<Vec<String>> {
    loop {
        if let Some(hosts) = dir.ready()? {
            return Ok(hosts);
        }
        if cancel.is_cancelled() {
            return Err(qnic_cluster::Error::Interrupted.into());
        }
        let state = engine.state(id)?;
        if state.as_ref().is_none_or(|state| state.is_over()) {
            let said = std::fs::read_to_string(dir.log()).unwrap_or_default();
            let how = state.map_or("is gone".to_owned(), |it| {
                format!("has ended: {}", it.state)
            });
            bail!("job {id} {how}\n{}", said.trim_end());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends the job of `dir`, and removes that.
fn end(engine: Engine, dir: &JobDir) -> Result<()> {
    if let Some(id) = dir.id()? {
        let going =
            |state: Option<qnic_trials::slurm::JobState>| state.is_some_and(|it| !it.is_over());
        if going(engine.state(id)?) {
            engine.cancel(id)?;
        }
        let until = Instant::now() + END_LIMIT;
        while going(engine.state(id)?) {
            if Instant::now() >= until {
                bail!("Slurm has not ended job {id} yet: look at it with squeue, then end the cluster again");
            }
            std::thread::sleep(PAUSE);
        }
    }
    dir.remove()
}

/// `down` of the cluster `name`, if it is on Slurm. Returns false if it is not.
pub(crate) fn down(name: &str) -> Result<bool> {
    let Some(dir) = jobs()?.find(name) else {
        return Ok(false);
    };
    end(Engine::find()?, &dir)?;
    Ok(true)
}

/// Names of the clusters on Slurm; none if there is no cache.
pub(crate) fn names() -> Vec<String> {
    jobs().map(|jobs| jobs.names()).unwrap_or_default()
}

/// Lines of `ps` for clusters on Slurm, and whether all are well.
pub(crate) fn ps() -> Result<(String, bool)> {
    let jobs = jobs()?;
    let mut rows = vec![["CLUSTER", "JOB", "STATE", "HOST", "NODES"]
        .map(str::to_owned)
        .to_vec()];
    let mut well = true;
    for name in jobs.names() {
        let Some(dir) = jobs.find(&name) else {
            continue;
        };
        let (job, id, ready) = (dir.read()?, dir.id()?, dir.ready()?);
        let state = match id {
            Some(id) => Engine::inside().state(id)?,
            None => None,
        };
        let over = state.as_ref().is_none_or(|state| state.is_over());
        well &= !over;
        let state = match (state, &ready) {
            (None, _) => "gone".to_owned(),
            (Some(state), None) if state.state == "RUNNING" => "booting".to_owned(),
            (Some(state), Some(_)) if state.state == "RUNNING" => "ready".to_owned(),
            (Some(state), _) => state.state.to_lowercase(),
        };
        for (index, part) in job.parts.iter().enumerate() {
            let host = ready.as_ref().and_then(|hosts| hosts.get(index).cloned());
            rows.push(vec![
                name.clone(),
                id.map_or("-".to_owned(), |id| id.to_string()),
                state.clone(),
                host.unwrap_or("-".to_owned()),
                part.nodes.join(","),
            ]);
        }
    }
    Ok((
        if rows.len() > 1 {
            ui::aligned(&rows)
        } else {
            String::new()
        },
        well,
    ))
}

/// Runs this very command on the host of `node`, if its cluster is on Slurm. Returns only if it is not.
pub(crate) fn hand_over(option: &ClusterOption, node: &str) -> Result<()> {
    let Some(name) = option.on_slurm(&names())? else {
        return Ok(());
    };
    let dir = jobs()?.find(&name).context("it has just ended")?;
    let (job, id, hosts) = (dir.read()?, dir.id()?, dir.ready()?);
    let (Some(id), Some(hosts)) = (id, hosts) else {
        bail!("the cluster {name} is not ready yet: see \"cargo qnic ps\"");
    };
    let mut parts = job.parts.iter();
    let Some(index) = parts.position(|part| part.nodes.iter().any(|one| one == node)) else {
        bail!("the cluster {name} has no node \"{node}\"; on Slurm, one is named at a time");
    };
    let host = hosts.get(index).context("a host is missing")?;
    let mut srun = Engine::inside().beside(id, host, &dir);
    srun.args(std::env::args_os().skip(1));
    srun.env(
        ui::CLUSTER,
        qnic_trials::slurm::cluster_name(&name, id, index),
    );
    Err(srun.exec()).context("start srun")
}

/// `slurm-host`: the task of a host.
pub(crate) fn host(options: &InJobOptions) -> Result<ExitCode> {
    qnic_trials::slurm::run_host(&options.dir)?;
    Ok(ExitCode::SUCCESS)
}

/// `slurm-job`: the supervisor in the job of an `up`.
pub(crate) fn supervisor(options: &InJobOptions) -> Result<ExitCode> {
    let cancel = Cancel::on_repeated_signals()?;
    let (dir, engine) = (JobDir::open(&options.dir), Engine::inside());
    let job = dir.read()?;
    let request = Request::inside(job.parts.len());
    let watching = IntoLog(&dir);
    let ending = supervise(
        engine.step(&request, &dir),
        &job,
        engine,
        &cancel,
        &watching,
    )?;
    eprintln!("qnic: {}: {}", job.name, ending.text);
    Ok(ExitCode::from(ending.status))
}

/// Shows all in the log of the job.
struct IntoLog<'a>(&'a JobDir);

impl Watching for IntoLog<'_> {
    fn screen(&self) -> &dyn Screen {
        &Quiet
    }

    fn progress(&self, from: &str, line: &str) {
        eprintln!("{from}: {line}");
    }

    fn ready(&self, hosts: &[String]) -> Result<()> {
        self.0.set_ready(hosts)
    }
}
