//! Mutants that pass, with the reason: the table in `harmless.md`.

use crate::mutant::Mutant;
use crate::suite::Source;

const TABLE: &str = include_str!("harmless.md");

/// The rows of the table: file, function, how the description starts, reason.
fn known() -> impl Iterator<Item = [&'static str; 4]> {
    let rows = TABLE.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| {
        let cells: Vec<_> = row.strip_suffix(" |")?.split(" | ").collect();
        cells.try_into().ok()
    });
    cells.skip(1)
}

/// Why a mutant may pass, if it may.
pub(crate) fn reason(source: &Source, mutant: &Mutant) -> Option<&'static str> {
    let mut known = known().filter(|[file, function, what, _]| {
        *file == source.path && *function == mutant.function && mutant.what.starts_with(what)
    });
    known.next().map(|[_, _, _, reason]| reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant;
    use crate::suite::SUITES;

    #[test]
    fn every_row_is_of_a_mutant() {
        let sources: Vec<_> = SUITES.iter().flat_map(|suite| suite.sources).collect();
        for row in known() {
            let [file, function, what, _] = row;
            let found = sources.iter().any(|source| {
                let mutants = mutant::all(&source.read().unwrap()).unwrap();
                let mut mutants = mutants.iter().filter(|mutant| mutant.function == function);
                source.path == file && mutants.any(|mutant| mutant.what.starts_with(what))
            });
            assert!(found, "{row:?}");
        }
        let rows = TABLE.lines().filter(|line| line.starts_with("| ")).count();
        assert_eq!(known().count(), rows - 1, "a row is not understood");
    }
}
