//! What measures each suite of suites.toml.

use anyhow::Result;
use qnic_cli::lab::bench::Suite;

use super::tables::Tables;
use super::{
    collective, curves, engine, growth, kernel, memory, message, peers, point_to_point, scaling,
    sync, wire,
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
        "kernel" => (Suite::Kernel, kernel::measure),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::document::kept_run;
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

    /// Each table of the kept run is what is declared makes of its samples: columns, roles, ratios, goals.
    #[test]
    fn the_kept_run_is_as_declared() {
        let near = |one: f64, other: f64| (one - other).abs() <= 2e-4 * other.abs();
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
            let declared = spec::suites().iter().find(|it| it.id == suite.id).unwrap();
            let made = raw.finish(declared);
            assert_eq!(made.len(), suite.tables.len());
            for (made, kept) in made.iter().zip(&suite.tables) {
                assert_eq!((&made.id, &made.title), (&kept.id, &kept.title));
                assert_eq!(
                    made.figures().count(),
                    kept.figures().count(),
                    "{}",
                    kept.id
                );
                for (made, kept) in made.figures().zip(kept.figures()) {
                    let id = &kept.id;
                    let plain = |it: &super::super::figures::Figure| {
                        (
                            it.id.clone(),
                            it.role,
                            it.better,
                            it.main,
                            it.spread.is_some(),
                        )
                    };
                    assert_eq!(plain(made), plain(kept));
                    assert!(
                        made.spread.is_none() || near(made.median(), kept.median()),
                        "{id}"
                    );
                    let ratio = |it: &super::super::figures::Figure| {
                        let ratio = it.ratio.as_ref();
                        ratio.map(|it| (it.to.clone(), it.floor_samples.len()))
                    };
                    assert_eq!(ratio(made), ratio(kept), "{id}");
                    if let (Some(made), Some(kept)) = (&made.ratio, &kept.ratio) {
                        assert!(
                            near(made.value, kept.value),
                            "{id}: {} {}",
                            made.value,
                            kept.value
                        );
                    }
                    let goal = |it: &super::super::figures::Figure| {
                        let goal = it.goal.as_ref();
                        goal.map(|it| (it.code.clone(), it.of, it.bound, it.met))
                    };
                    assert_eq!(goal(made), goal(kept), "{id}");
                    if let (Some(made), Some(kept)) = (&made.goal, &kept.goal) {
                        assert!(near(made.value, kept.value), "{id}");
                    }
                }
            }
        }
    }
}
