//! Programs that run on the nodes of a trial.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use qnic_cluster::{Error, GuestCommand, GuestEvent, GuestExit, Node, NodeState};

use crate::artifacts::Artifacts;
use crate::output::{BoundedFile, Screen, Stream, Tail};
use crate::stop::{Reason, Stop};

/// The guest's error number for "no such file".
const ENOENT: i32 = 2;

/// How a program ended on a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProgramEnd {
    Exited(GuestExit),
    NotStarted {
        missing: bool,
        message: String,
    },
    /// The trial was stopped.
    Stopped,
    Failed(String),
}

/// What is known of a program after its end.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) node: String,
    pub(crate) end: ProgramEnd,
    pub(crate) took: Duration,
    /// The end of what it printed, both outputs.
    pub(crate) printed: String,
    /// Why its outputs could not be kept.
    pub(crate) lost: Option<io::Error>,
}

/// Runs `command` on `node` until it ends, `limit` is over or `stop` is pulled.
pub(crate) fn run(
    node: &Node,
    command: &GuestCommand,
    limit: Duration,
    (stop, screen, artifacts): (&Stop, &dyn Screen, Option<&Artifacts>),
) -> Ran {
    let start = Instant::now();
    let mut output = NodeOutput::new(node.name(), screen, artifacts);
    let end = follow(node, command, start + limit, stop, &mut output);
    let end = end.unwrap_or_else(|error| match error {
        Error::Interrupted => ProgramEnd::Stopped,
        Error::NotStarted { errno, message, .. } => ProgramEnd::NotStarted {
            missing: errno == ENOENT,
            message: format!("node {}: cannot start {message}", node.name()),
        },
        // The command may see it before the watch of the cluster does.
        _ if node.state() == NodeState::Panicked => {
            stop.pull(Reason::Panicked(node.name().to_owned()));
            ProgramEnd::Stopped
        }
        error => ProgramEnd::Failed(error.to_string()),
    });
    Ran {
        node: node.name().to_owned(),
        end,
        took: start.elapsed(),
        lost: output.finish().err(),
        printed: output.tail.text(),
    }
}

fn follow(
    node: &Node,
    command: &GuestCommand,
    until: Instant,
    stop: &Stop,
    output: &mut NodeOutput<'_>,
) -> qnic_cluster::Result<ProgramEnd> {
    let mut process = node.spawn(command)?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match process.next_event(Some(left))? {
            Some(GuestEvent::Stdout(bytes)) => output.take(Stream::Out, &bytes),
            Some(GuestEvent::Stderr(bytes)) => output.take(Stream::Err, &bytes),
            Some(GuestEvent::Exit(exit)) => return Ok(ProgramEnd::Exited(exit)),
            None => {
                stop.pull(Reason::TimedOut(node.name().to_owned()));
                return Ok(ProgramEnd::Stopped);
            }
        }
    }
}

/// Runs the program on all `nodes` at the same time. The ends are in the order of the nodes.
pub(crate) fn on_all<T: Send>(nodes: &[&Node], run: impl Fn(&Node) -> T + Sync) -> Vec<T> {
    let done: Vec<Mutex<Option<T>>> = nodes.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for (node, done) in nodes.iter().zip(&done) {
            let run = &run;
            scope.spawn(move || {
                let result = run(node);
                *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            });
        }
    });
    let done = done.into_iter();
    done.filter_map(|done| done.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

/// Where the outputs of one program go.
struct NodeOutput<'a> {
    node: &'a str,
    screen: &'a dyn Screen,
    files: Vec<(Stream, BoundedFile)>,
    lost: Option<io::Error>,
    tail: Tail,
}

impl<'a> NodeOutput<'a> {
    fn new(node: &'a str, screen: &'a dyn Screen, artifacts: Option<&Artifacts>) -> Self {
        let mut output = Self {
            node,
            screen,
            files: Vec::new(),
            lost: None,
            tail: Tail::default(),
        };
        let names = [(Stream::Out, "stdout.log"), (Stream::Err, "stderr.log")];
        for (artifacts, (stream, name)) in artifacts.iter().flat_map(|one| names.map(|x| (one, x)))
        {
            match artifacts.file(&format!("{node}/{name}")) {
                Ok(file) => output.files.push((stream, BoundedFile::new(file))),
                Err(error) => output.lost = Some(error),
            }
        }
        output
    }

    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        self.screen.show(self.node, stream, bytes);
        self.tail.push(bytes);
        let mut files = self.files.iter_mut();
        if let Some((_, file)) = files.find(|(of, _)| *of == stream) {
            if let Err(error) = file.write(bytes) {
                self.lost = Some(error);
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        for (_, file) in self.files.drain(..) {
            if let Err(error) = file.finish() {
                self.lost = Some(error);
            }
        }
        self.lost.take().map_or(Ok(()), Err)
    }
}
