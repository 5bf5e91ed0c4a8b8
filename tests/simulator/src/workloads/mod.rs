//! The workloads that there are: what processes do, and what must hold of it.
//!
//! | workload | its processes | seeds |
//! |---|---|---|
//! | [`rdma`] | export, import, write, read, increment | all |
//! | [`messages`] | send, receive and probe tagged messages | 0 and 6 modulo 7 |
//! | [`groups`] | form groups and take part in collectives | 5 modulo 7 |
//! | [`names`] | name themselves, and look up names | 4 modulo 7 |
//! | [`datagrams`] | are the drivers of their nodes, and use datagrams | 3 modulo 28 |
//! | [`memory`] | serve and use remote memory | 10 modulo 28 |
//! | [`streams`] | have streams over shared pools | 17 modulo 28 |
//! | [`verbs`] | have queue pairs, as programs of libibverbs | 22 and 24 modulo 28 |
//! | [`sync`] | use locks, semaphores, wait queues and monitors of the library | all others |
//!
//! To add one: a module here that implements [`Workload`] and [`Oracle`](crate::workload::Oracle),
//! and its line in [`KINDS`]. Workloads do not import each other.

pub(crate) mod rdma;

mod datagrams;
mod groups;
mod memory;
mod messages;
mod names;
mod streams;
mod sync;
mod verbs;

use crate::routes::Routes;
use crate::settings::Settings;
use crate::workload::{Seed, Workload};

/// Returns true if a seed has a workload.
type Takes = fn(u64) -> bool;

/// Makes a workload with its oracle.
type New = fn(&mut Seed<'_>) -> Box<dyn Workload>;

/// The workloads beside RDMA workers. A seed has the first that takes it.
const KINDS: &[(Takes, New)] = &[
    (|seed| matches!(seed % 7, 0 | 6), messages::new),
    (|seed| seed % 7 == 5, groups::new),
    (|seed| seed % 7 == 4, names::new),
    (|seed| seed % 28 == 3, datagrams::new),
    (|seed| seed % 28 == 10, memory::new),
    (|seed| seed % 28 == 17, streams::new),
    (|seed| matches!(seed % 28, 22 | 24), verbs::new),
    (|_| true, sync::new),
];

/// The workloads of a seed: RDMA workers, and others.
pub(crate) fn of_seed(
    seed: u64,
    settings: &mut Settings,
    routes: &Routes,
) -> Vec<Box<dyn Workload>> {
    let kind = KINDS.iter().find(|(takes, _)| takes(seed));
    let (_, new) = kind.expect("the last takes all");
    let others = new(&mut Seed {
        number: seed,
        settings,
        random: fastrand::Rng::with_seed(!seed),
        routes,
    });
    vec![Box::new(rdma::Rdma::new(settings, routes, None)), others]
}
