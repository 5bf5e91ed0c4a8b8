//! The example of docs/verbs.md for CI, as it stands there, and with links that lose frames (X18, X19):
//! `cargo qnic exec examples/verbs.toml -- examples/verbs/test.sh`.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qnic_cluster::ClusterSpec;
use qnic_trials::{Setting, Verdict};

use crate::vm::trials::{run, trial};

/// The cluster and the program, in the checkout.
const CLUSTER: &str = "examples/verbs.toml";
const PROGRAM: &str = "examples/verbs/test.sh";

/// What it is set beside the cluster file: a row of the matrix there.
const SETTINGS: [Option<(&str, &str)>; 2] = [None, Some(("loss", "5%"))];

/// What the program says of its messages on both nodes.
const SAYS: &str = "100 iters in";

/// One that has not ended by then hangs.
const HANGS: Duration = Duration::from_secs(900);

pub(super) fn passes() -> Result<()> {
    let checkout = qnic_cluster::repository().context("the checkout is gone")?;
    let program = checkout.join(PROGRAM);
    let program = program.to_str().context("a path that is not UTF-8")?;
    for setting in SETTINGS {
        let mut example = trial(ClusterSpec::load(&checkout.join(CLUSTER))?, &[program])?;
        (example.timeout, example.boot_timeout) = (HANGS, HANGS);
        if let Some((key, value)) = setting {
            let setting = Setting::new(key, value);
            setting.apply(&mut example.spec)?;
            example.settings = vec![setting];
        }
        let outcome = run(&example)?;
        let told = outcome.cases.iter().filter(|it| it.output.contains(SAYS));
        ensure!(
            outcome.verdict == Verdict::Passed && told.count() == 2,
            "{setting:?}: {outcome:?}"
        );
    }
    Ok(())
}
