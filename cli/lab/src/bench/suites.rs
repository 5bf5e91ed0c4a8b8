//! What measures each suite of suites.toml.

use anyhow::Result;
use qnic_cli::lab::bench::Suite;

use super::tables::Tables;
use super::{
    collective, curves, drivers, engine, ethernet, growth, kernel, memory, message, mpi, paper,
    peers, point_to_point, scaling, sync, verbs, wire,
};

/// Measures so many rounds.
pub(super) type Measure = fn(usize, &mut Tables) -> Result<()>;

/// What a suite is on the command line, and what measures it.
pub(super) fn of(id: &str) -> Option<(Suite, Measure)> {
    Some(match id {
        "engine" => (Suite::Engine, engine::measure),
        "host" => (Suite::Host, point_to_point::host),
        "memory" => (Suite::Memory, memory::measure),
        "sync" => (Suite::Sync, sync::measure),
        "curves" => (Suite::Curves, curves::measure),
        "peers" => (Suite::Peers, peers::measure),
        "message" => (Suite::Message, message::measure),
        "collective" => (Suite::Collective, collective::measure),
        "growth" => (Suite::Growth, |rounds, tables| {
            growth::measure(rounds, tables)?;
            scaling::measure(rounds, tables)
        }),
        "wire" => (Suite::Wire, wire::measure),
        "vm" => (Suite::Vm, point_to_point::vm),
        "vfio" => (Suite::Vfio, drivers::measure),
        "paper-guest" => (Suite::PaperGuest, paper::in_a_guest),
        "kernel" => (Suite::Kernel, kernel::measure),
        "ethernet" => (Suite::Ethernet, ethernet::measure),
        "mpi" => (Suite::Mpi, mpi::measure),
        "verbs" => (Suite::Verbs, verbs::measure),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::document::kept_run;
    use super::super::figures::{Figure, Table};
    use super::super::spec;
    use super::*;

    #[test]
    fn each_suite_of_the_command_line_is_declared_by_that_name() {
        let single = |suite: &&Suite| suite.parts() == [**suite];
        let names = Suite::value_variants().iter().filter(single);
        let mut names: Vec<_> = names.map(|it| it.to_possible_value().unwrap()).collect();
        for suite in spec::suites() {
            let (known, _) = of(&suite.id).unwrap();
            let name = known.to_possible_value().unwrap();
            assert_eq!(name.get_name(), suite.id);
            names.retain(|it| *it != name);
        }
        assert_eq!(names, []);
    }

    #[test]
    fn all_of_them_take_half_an_hour() {
        let seconds = spec::suites().iter().map(|it| it.estimate(it.rounds));
        assert!(seconds.sum::<f64>() < 1800.0);
        // With fewer, a rank test cannot tell two runs apart.
        assert!(spec::suites().iter().all(|it| it.rounds >= 5));
    }

    /// What is declared of a figure, and its numbers: median, ratio, goal.
    fn declared(figure: &Figure) -> (String, Vec<f64>) {
        let ratio = figure.ratio.as_ref();
        let goal = figure.goal.as_ref();
        let of_ratio = ratio.map(|it| (&it.to, it.floor_samples.len()));
        let of_goal = goal.map(|it| (&it.code, it.of, it.bound, it.met));
        let Figure {
            id,
            role,
            better,
            main,
            ..
        } = figure;
        let text = format!("{id} {role:?} {better:?} {main} {of_ratio:?} {of_goal:?}");
        let numbers = [figure.spread.map(|it| it.median), ratio.map(|it| it.value)];
        let numbers = numbers.into_iter().chain([goal.map(|it| it.value)]);
        (text, numbers.flatten().collect())
    }

    /// Each table of the kept run is what is declared makes of its samples. A table that was declared
    /// since has none there.
    #[test]
    fn the_kept_run_is_as_declared() {
        for suite in kept_run().suites {
            let mut raw = Tables::default();
            for table in &suite.tables {
                for row in &table.rows {
                    let to = raw.row(&table.id, &row.name, row.at.clone());
                    for figure in &row.figures {
                        let name = format!("{} [{}]", figure.what, figure.unit);
                        to.add(&name, figure.samples.iter().copied());
                    }
                }
            }
            let spec = spec::suites().iter().find(|it| it.id == suite.id).unwrap();
            let mut made = raw.finish(spec);
            made.retain(|table| suite.tables.iter().any(|kept| kept.id == table.id));
            let titles = |all: &[Table]| -> Vec<_> {
                all.iter()
                    .map(|it| (it.id.clone(), it.title.clone()))
                    .collect()
            };
            assert_eq!(titles(&made), titles(&suite.tables));
            let figures = |all: &[Table]| -> Vec<_> {
                all.iter().flat_map(Table::figures).map(declared).collect()
            };
            let (made, kept) = (figures(&made), figures(&suite.tables));
            assert_eq!(made.len(), kept.len());
            for ((made, numbers), (kept, wanted)) in made.iter().zip(&kept) {
                assert_eq!((made, numbers.len()), (kept, wanted.len()));
                // The record has five digits.
                let mut pairs = numbers.iter().zip(wanted);
                let near = pairs.all(|(one, other)| (one - other).abs() <= 2e-4 * other.abs());
                assert!(near, "{made}: {numbers:?}, {wanted:?}");
            }
        }
    }
}
