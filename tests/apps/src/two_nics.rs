//! The measurements of NetVM's evaluation between the two NICs of this machine ([`qnic_apps::paper`]), once.

use anyhow::{Context, Result};
use qnic::Nic;
use qnic_abi::PAGE_SIZE;
use qnic_apps::demo::node::say_line;
use qnic_apps::paper::{curves, operations, rates, signals, transfers};
use qnic_apps::paper::{End, Ends, Nowhere, Round, Sample, Samples};

/// In front of the names of tables by length: some have the names of those that are not.
const BY_LENGTH: &str = "length-";

/// Names of the NICs.
const NICS: [&str; 2] = ["near", "far"];

/// Samples of curves.
struct Curves<'a>(&'a mut Round);

impl Samples for Curves<'_> {
    fn sample(&mut self, sample: Sample) {
        let table = format!("{BY_LENGTH}{}", sample.table);
        self.0.sample(Sample { table, ..sample });
    }
}

/// Measures all; prints the median of each figure as a [`Sample`].
pub(crate) fn run() -> Result<()> {
    let end = |name| -> Result<End> {
        let nic = Nic::open_named(name).with_context(|| format!("open the NIC {name}"))?;
        // To take a page from this process would take its bytes.
        Ok(End { nic, evict: None })
    };
    let [near, far] = NICS;
    let ends: Ends = [end(near)?, end(far)?];
    let mut round = Round::default();
    transfers::Bench::new(&ends)?.round(&mut round)?;
    curves::round(&ends, PAGE_SIZE, &mut Curves(&mut round))?;
    let bench = operations::Bench::new(&ends)?;
    // What comes first warms up.
    bench.round(&mut Nowhere)?;
    bench.round(&mut round)?;
    let mut bench = signals::Bench::new(&ends)?;
    bench.round(&mut round)?;
    bench.by_length(&mut Curves(&mut round))?;
    rates::Bench::new(&ends)?.round(&mut round)?;
    round.medians().try_for_each(|sample| say_line(&sample))
}
