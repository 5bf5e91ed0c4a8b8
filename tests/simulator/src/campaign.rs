//! Running seeds: one, many, for hours; and making a failure smaller.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{catch_unwind, AssertUnwindSafe, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::mix::{Mix, Mode};
use crate::report::Report;
use crate::schedule::{lock, Trace};
use crate::settings::Options;
use crate::world::World;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}: {message}")]
pub struct Failure {
    /// The seed that broke it.
    pub seed: u64,
    /// What that simulation was made of.
    pub options: Options,
    /// Which promise, where in the simulator or the product it was noticed.
    pub message: String,
}

impl Failure {
    /// The command that repeats it, with its trace.
    pub fn replay(&self) -> String {
        let Options {
            nodes,
            operations,
            faults,
            lossless,
            engines,
        } = self.options;
        let defaults = Options::default();
        let mut command = format!("cargo qnic sim --seed {}", self.seed);
        if nodes != defaults.nodes {
            command += &format!(" --nodes {nodes}");
        }
        if operations != defaults.operations {
            command += &format!(" --operations {operations}");
        }
        if faults != defaults.faults {
            let names = match faults.is_empty() {
                true => "none".to_owned(),
                false => faults.names(),
            };
            command += &format!(" --faults {names}");
        }
        if lossless {
            command += " --lossless";
        }
        if engines {
            command += " --engines";
        }
        command
    }
}

thread_local! {
    /// The message of the last panic of this thread, while a simulation runs on it.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    static SIMULATING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Keeps the message of a simulation that fails for its [`Failure`]; panics elsewhere are
/// reported as usual.
fn keep_messages() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match SIMULATING.get() {
            // The first: another one may follow from its way out.
            true => MESSAGE.with_borrow_mut(|first| {
                first.get_or_insert_with(|| message(info));
            }),
            false => others(info),
        }));
    });
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("a panic without a message");
    match info.location() {
        Some(location) => format!("{message} ({}:{})", location.file(), location.line()),
        None => message.to_owned(),
    }
}

/// Runs one seed.
///
/// # Errors
/// [`Failure`].
pub fn run(seed: u64, options: &Options) -> Result<Report, Failure> {
    run_with(seed, options, None)
}

/// Runs one seed and writes a line for each event; the same bytes each time.
///
/// # Errors
/// [`Failure`].
pub fn run_traced(
    seed: u64,
    options: &Options,
    trace: impl Write + Send + 'static,
) -> Result<Report, Failure> {
    run_with(seed, options, Some(Box::new(trace)))
}

/// Memory that keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs one seed, and returns its trace, too.
pub fn trace(seed: u64, options: &Options) -> (Result<Report, Failure>, String) {
    let kept = Kept::default();
    let result = run_with(seed, options, Some(Box::new(kept.clone())));
    let bytes = std::mem::take(&mut *lock(&kept.0));
    (result, String::from_utf8_lossy(&bytes).into_owned())
}

fn run_with(seed: u64, options: &Options, trace: Trace) -> Result<Report, Failure> {
    keep_messages();
    SIMULATING.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| World::new(seed, options, trace).run()));
    SIMULATING.set(false);
    result.map_err(|_| Failure {
        seed,
        options: *options,
        message: MESSAGE.take().unwrap_or_default(),
    })
}

/// What a campaign has found.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// How many of them in each mode.
    pub by_mode: BTreeMap<Mode, u64>,
    /// Sums over all of them.
    pub total: Report,
    /// What failed, by seed.
    pub failures: Vec<Failure>,
}

/// When a campaign ends.
pub trait Campaign: Sync {
    /// The next seed and what it simulates, or `None` at the end.
    fn next(&self) -> Option<(u64, Options)>;

    /// A seed was run.
    fn done(&self, summary: &Summary);
}

/// The seeds `first .. first + count`.
pub struct Seeds {
    next: AtomicU64,
    end: u64,
    mix: Mix,
}

impl Seeds {
    /// Seeds in their order.
    pub fn new(first: u64, count: u64, mix: impl Into<Mix>) -> Self {
        Seeds {
            next: AtomicU64::new(first),
            end: first.saturating_add(count),
            mix: mix.into(),
        }
    }
}

impl Campaign for Seeds {
    fn next(&self) -> Option<(u64, Options)> {
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        (seed < self.end).then(|| (seed, self.mix.of(seed)))
    }

    fn done(&self, _summary: &Summary) {}
}

/// Runs seeds on so many threads. Stops after `most_failures`.
pub fn campaign(threads: usize, most_failures: usize, seeds: &dyn Campaign) -> Summary {
    let summary = Mutex::new(Summary::default());
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let Some((seed, options)) = seeds.next() else {
                        break;
                    };
                    let result = run(seed, &options);
                    let mut summary = lock(&summary);
                    summary.seeds += 1;
                    *summary.by_mode.entry(Mode::of(&options)).or_default() += 1;
                    match result {
                        Ok(report) => summary.total.add(&report),
                        Err(failure) => summary.failures.push(failure),
                    }
                    if summary.failures.len() >= most_failures {
                        enough.store(true, Ordering::Relaxed);
                    }
                    seeds.done(&summary);
                }
            });
        }
    });
    let mut summary = std::mem::take(&mut *lock(&summary));
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}

/// Seeds that are tried for each smaller set of options.
const TRIES: u64 = 40;

/// Looks for a smaller simulation that still fails: fewer faults, nodes and
/// transfers. Tries the seed itself, then some others, and reports each success.
pub fn shrink(failure: Failure, report: &mut dyn FnMut(&Failure)) -> Failure {
    let mut best = failure;
    loop {
        let smaller = smaller(&best.options)
            .into_iter()
            .find_map(|options| fails(best.seed, &options));
        match smaller {
            Some(found) => {
                report(&found);
                best = found;
            }
            None => return best,
        }
    }
}

fn fails(seed: u64, options: &Options) -> Option<Failure> {
    let seeds = std::iter::once(seed).chain(0..TRIES);
    seeds.into_iter().find_map(|seed| run(seed, options).err())
}

/// Options with one thing less each, the largest step first.
fn smaller(options: &Options) -> Vec<Options> {
    let one_fault_less = options.faults.into_iter().map(|fault| Options {
        faults: options.faults - fault,
        ..*options
    });
    let one_node_less = (options.nodes > 2).then(|| Options {
        nodes: options.nodes - 1,
        ..*options
    });
    let fewer = [options.operations / 2, options.operations * 3 / 4].into_iter();
    let fewer = fewer.filter(|fewer| (1..options.operations).contains(fewer));
    let fewer_operations = fewer.map(|operations| Options {
        operations,
        ..*options
    });
    let list = one_fault_less.chain(one_node_less).chain(fewer_operations);
    list.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Faults;

    #[test]
    fn a_failure_names_the_command_that_repeats_it() {
        let mut failure = Failure {
            seed: 7,
            options: Options::default(),
            message: "lost".to_owned(),
        };
        assert_eq!(failure.replay(), "cargo qnic sim --seed 7");
        failure.options.nodes = 2;
        failure.options.faults = Faults::KILL;
        assert_eq!(
            failure.replay(),
            "cargo qnic sim --seed 7 --nodes 2 --faults kill"
        );
        failure.options.lossless = true;
        assert!(failure.replay().ends_with("--faults kill --lossless"));
        failure.options.engines = true;
        assert!(failure.replay().ends_with("--lossless --engines"));
    }

    #[test]
    fn smaller_options_are_smaller() {
        let options = Options::default();
        for fewer in smaller(&options) {
            assert_ne!(fewer, options);
            assert!(fewer.nodes <= options.nodes && fewer.operations <= options.operations);
        }
        let least = Options {
            nodes: 2,
            operations: 1,
            faults: Faults::empty(),
            lossless: false,
            engines: false,
        };
        assert!(smaller(&least).is_empty());
    }
}
