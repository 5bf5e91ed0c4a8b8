//! The supervisor of a job: runs srun, brings the tasks together, and says how the job ended.
//!
//! ```text
//!   all have said Hello   ─▶ Names        the addresses by which Slurm reaches them
//!   all have an Address   ─▶ Hosts
//!   all have Reached      ─▶ Go
//!   a Done that is not expected, or a cancel ─▶ the input of all ends, and they with it
//!   srun has ended        ─▶ the reports; where some are missing, what Slurm says of the job
//! ```

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::{Screen, Step, Stream, Verdict};
use anyhow::{Context, Result};
use qnic_cluster::{spawn_bound, Cancel};

use crate::slurm::engine::Engine;
use crate::slurm::job::{Job, Work};
use crate::slurm::messages::{bytes_of, Reader, Report, Said, Told};

/// Longest time for tasks to take down what they have; then Slurm ends them.
const END_LIMIT: Duration = Duration::from_secs(120);
/// Longest time for Slurm to know that a job has ended whose srun has.
const STATE_LIMIT: Duration = Duration::from_secs(60);
/// Between questions to Slurm.
const PAUSE: Duration = Duration::from_millis(200);
/// Lines of srun in an error.
const LINES: usize = 10;

/// What a supervisor tells on the way.
pub trait Watching: Sync {
    /// Shows what programs print.
    fn screen(&self) -> &dyn Screen;
    /// Something for the user to read, of a host or of srun.
    fn progress(&self, from: &str, line: &str);
    /// All hosts are ready.
    ///
    /// # Errors
    /// Ends the job.
    fn ready(&self, hosts: &[String]) -> Result<()>;
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The exit status that tells it, as [`Verdict::status`].
    pub status: u8,
    /// What happened, in words.
    pub text: String,
}

enum Event {
    Line(Vec<u8>),
    Srun(String),
    Cancelled,
    Ended(std::io::Result<ExitStatus>),
}

/// Runs `srun`, which starts the tasks of `job`, to its end.
///
/// # Errors
/// Returns an error if srun cannot be started.
pub fn supervise(
    srun: Command,
    job: &Job,
    engine: Engine,
    cancel: &Cancel,
    watching: &dyn Watching,
) -> Result<Ending> {
    let over = Cancel::new()?;
    let (sender, events) = channel();
    let input = start(srun, &sender)?;
    let mut supervisor = Supervisor {
        job,
        engine,
        watching,
        input: Some(input),
        reader: Reader::default(),
        tasks: vec![Task::default(); job.parts.len()],
        id: None,
        first_end: None,
        interrupted: false,
        lines: VecDeque::new(),
    };
    let status = std::thread::scope(|scope| {
        scope.spawn(|| {
            if cancel.wait_before(&over) {
                // The receiver has gone if all has ended.
                let _ = sender.send(Event::Cancelled);
            }
        });
        let status = supervisor.run(&events);
        over.cancel();
        status
    });
    Ok(supervisor.ending(status))
}

/// Starts srun, and threads that hear it; its input.
fn start(mut srun: Command, sender: &Sender<Event>) -> Result<ChildStdin> {
    srun.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn_bound(srun).context("start srun")?;
    let input = child.stdin.take().context("srun has no input")?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (of_out, of_err, of_end) = (sender.clone(), sender.clone(), sender.clone());
    let said = std::thread::spawn(move || each_line(out, &of_out, Event::Line));
    let told = std::thread::spawn(move || {
        each_line(err, &of_err, |line| {
            Event::Srun(String::from_utf8_lossy(&line).into_owned())
        });
    });
    std::thread::spawn(move || {
        // All that it has said comes before its end.
        let _ = (said.join(), told.join());
        let _ = of_end.send(Event::Ended(wait(child)));
    });
    Ok(input)
}

fn wait(mut child: Child) -> std::io::Result<ExitStatus> {
    child.wait()
}

fn each_line(from: Option<impl Read>, sender: &Sender<Event>, event: impl Fn(Vec<u8>) -> Event) {
    let Some(from) = from else { return };
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        if sender.send(event(line)).is_err() {
            return;
        }
    }
}

/// What is known of a task.
#[derive(Clone, Debug, Default)]
struct Task {
    host: Option<String>,
    address: Option<std::net::SocketAddr>,
    booted: bool,
    ran: bool,
    report: Option<Report>,
}

struct Supervisor<'a> {
    job: &'a Job,
    engine: Engine,
    watching: &'a dyn Watching,
    /// `None` once the tasks are to end.
    input: Option<ChildStdin>,
    reader: Reader,
    tasks: Vec<Task>,
    id: Option<u32>,
    /// What made the job end: a host, and what it or this program has to say.
    first_end: Option<(Option<usize>, Report)>,
    interrupted: bool,
    lines: VecDeque<String>,
}

impl Supervisor<'_> {
    fn run(&mut self, events: &Receiver<Event>) -> Option<ExitStatus> {
        let mut deadline = None;
        loop {
            if self.input.is_none() && deadline.is_none() {
                deadline = Some(Instant::now() + END_LIMIT);
            }
            let left = deadline.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let event = match left {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => events.recv_timeout(left),
            };
            match event {
                Ok(Event::Line(line)) => self.take(&line),
                Ok(Event::Srun(line)) => self.note(&line),
                Ok(Event::Cancelled) => {
                    self.interrupted = true;
                    self.input = None;
                }
                Ok(Event::Ended(status)) => return self.ended(status),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    self.cancel();
                    deadline = Some(Instant::now() + END_LIMIT);
                }
            }
        }
    }

    /// srun has ended. One that was killed leaves its tasks, which Slurm ends.
    fn ended(&mut self, status: std::io::Result<ExitStatus>) -> Option<ExitStatus> {
        let status = status.ok()?;
        if status.signal().is_some() {
            self.end(
                None,
                impossible(format!("srun has ended before all hosts: {status}")),
            );
            self.cancel();
        }
        Some(status)
    }

    fn cancel(&mut self) {
        if let Some(Err(error)) = self.id.map(|id| self.engine.cancel(id)) {
            self.note(&format!("{error:#}"));
        }
    }

    fn note(&mut self, line: &str) {
        self.watching.progress("srun", line);
        self.lines.push_back(line.to_owned());
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }

    fn take(&mut self, line: &[u8]) {
        let taken = match self.reader.take(line) {
            Ok(None) => return,
            Ok(Some((host, said))) if host < self.tasks.len() => self.hear(host, said),
            Ok(Some((host, _))) => Err(anyhow::anyhow!("there is no host {host}")),
            Err(error) => Err(anyhow::anyhow!(error)),
        };
        if let Err(error) = taken {
            self.end(None, impossible(format!("{error:#}")));
        }
    }

    fn hear(&mut self, host: usize, said: Said) -> Result<()> {
        match said {
            Said::Hello { host: name, job } => {
                self.id = Some(job);
                self.tasks[host].host = Some(name);
                let Some(hosts) = self.all(|task| task.host.clone()) else {
                    return Ok(());
                };
                self.watching
                    .progress("slurm", &format!("job {job} runs on {}", hosts.join(", ")));
                if hosts.len() > 1 {
                    self.tell(&Told::Names(self.engine.addresses(&hosts)?))?;
                }
            }
            Said::Address(address) => {
                self.tasks[host].address = Some(address);
                if let Some(addresses) = self.all(|task| task.address) {
                    self.tell(&Told::Hosts(addresses))?;
                }
            }
            Said::Progress(text) => self.watching.progress(&self.name_of(host), &text),
            Said::Output { node, error, bytes } => {
                let stream = if error { Stream::Err } else { Stream::Out };
                let bytes = bytes_of(&bytes).context("an output is not in base64")?;
                self.watching.screen().show(&node, stream, &bytes);
            }
            Said::Reached(Step::Booted) => {
                self.tasks[host].booted = true;
                if self.tasks.iter().all(|task| task.booted) {
                    let hosts = self.all(|task| task.host.clone()).unwrap_or_default();
                    self.watching.ready(&hosts)?;
                    self.tell(&Told::Go(Step::Booted))?;
                }
            }
            Said::Reached(Step::Ran) => {
                self.tasks[host].ran = true;
                if self.tasks.iter().all(|task| task.ran) {
                    self.tell(&Told::Go(Step::Ran))?;
                }
            }
            Said::Done(report) => {
                let expected = self.tasks.iter().all(|task| task.ran);
                self.tasks[host].report = Some(report.clone());
                if !expected || is_fatal(&report) {
                    self.end(Some(host), report);
                }
            }
        }
        Ok(())
    }

    /// What all tasks have, once all have it.
    fn all<T>(&self, of: impl Fn(&Task) -> Option<T>) -> Option<Vec<T>> {
        self.tasks.iter().map(of).collect()
    }

    fn name_of(&self, host: usize) -> String {
        let name = self.tasks[host].host.clone();
        name.unwrap_or_else(|| format!("host {host}"))
    }

    fn tell(&mut self, told: &Told) -> Result<()> {
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let text = serde_json::to_string(told)?;
        // A srun that has ended says more than the broken pipe does.
        let _ = writeln!(input, "{text}").and_then(|()| input.flush());
        Ok(())
    }

    /// Ends all tasks, for this reason unless there is one.
    fn end(&mut self, host: Option<usize>, report: Report) {
        if self.input.take().is_some() {
            self.first_end = Some((host, report));
        }
    }

    fn ending(&self, status: Option<ExitStatus>) -> Ending {
        if self.interrupted {
            return Ending {
                status: Verdict::INTERRUPTED,
                text: "interrupted".to_owned(),
            };
        }
        let reports = self.all(|task| task.report.clone());
        if let (Some(reports), None) = (&reports, &self.first_end) {
            return self.of_programs(reports);
        }
        let killed = status.is_some_and(|status| status.signal().is_some());
        if let (Some(ending), false) = (self.of_slurm(), killed) {
            return ending;
        }
        match &self.first_end {
            Some((host, report)) => {
                let from = host.map_or(String::new(), |host| format!("{}: ", self.name_of(host)));
                Ending {
                    status: report.status,
                    text: format!("{from}{}", report.text),
                }
            }
            None => {
                let lines: Vec<_> = self.lines.iter().map(String::as_str).collect();
                let how = status.map_or("in an unknown way".to_owned(), |it| it.to_string());
                let said = lines.join("\n");
                Ending {
                    status: Verdict::IMPOSSIBLE,
                    text: format!("srun ended ({how}) before all hosts had\n{said}"),
                }
            }
        }
    }

    /// The first failure of a program, in the order of the file.
    fn of_programs(&self, reports: &[Report]) -> Ending {
        let order = self.job.parts.iter().flat_map(|part| &part.nodes);
        let failed = reports.iter().filter(|report| report.status != 0);
        let place = |report: &&Report| {
            let place = order
                .clone()
                .position(|node| report.node.as_ref() == Some(node));
            place.unwrap_or(usize::MAX)
        };
        let (status, text) = match failed.min_by_key(place) {
            Some(report) => (report.status, report.text.clone()),
            None => (0, String::new()),
        };
        Ending { status, text }
    }

    /// Why Slurm has ended the job, if it has.
    fn of_slurm(&self) -> Option<Ending> {
        let id = self.id?;
        let until = Instant::now() + STATE_LIMIT;
        // In the batch step of "up" the job goes on.
        let is_step = self.job.work == Work::Hold;
        let state = loop {
            match self.engine.state(id) {
                Ok(Some(state)) if state.is_over() || is_step => break state,
                Ok(Some(_)) if Instant::now() < until => std::thread::sleep(PAUSE),
                _ => return None,
            }
        };
        let (what, status) = state.end()?;
        let hosts: Vec<_> = self
            .tasks
            .iter()
            .filter_map(|task| task.host.clone())
            .collect();
        let lost = match state.state.as_str() {
            "NODE_FAIL" => self.engine.lost(&hosts).join(", "),
            _ => String::new(),
        };
        let lost = if lost.is_empty() {
            lost
        } else {
            format!(": {lost}")
        };
        let text = format!("job {id} of Slurm {what}{lost}");
        Some(Ending { status, text })
    }
}

fn impossible(text: String) -> Report {
    Report {
        status: Verdict::IMPOSSIBLE,
        node: None,
        text,
    }
}

fn is_fatal(report: &Report) -> bool {
    report.status != 0 && report.node.is_none()
}
