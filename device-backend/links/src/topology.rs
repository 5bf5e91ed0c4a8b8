//! How nodes are joined, and the way from one to another (Q16).
//!
//! ```text
//!   mesh            ring             star             torus, 3 columns
//!   0 ─── 1         0 ── 1           1   2            0 ── 1 ── 2 ─┐(to 0)
//!   │ ╲ ╱ │         │    │            ╲ ╱             │    │    │
//!   │ ╱ ╲ │         3 ── 2             0 (hub)        3 ── 4 ── 5
//!   3 ─── 2                            │              │    │    │ (to 0, 1, 2)
//!                                      3
//! ```
//!
//! Places are numbered from 0 in the order of node numbers. On a torus, place *p* of
//! *c* columns has the coordinates (*p* mod *c*, *p* div *c*); a route goes along the
//! row first, then along the column, each the shorter way round (dimension order, so
//! no cycle of waiting can form). A ring is a torus with one row.

use serde::{Deserialize, Serialize};

/// How nodes are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// Each with each.
    #[default]
    Mesh,
    /// Each with the two beside it.
    Ring,
    /// Each with one.
    Star {
        /// Place of that one.
        hub: usize,
    },
    /// Rows and columns whose ends are joined.
    Torus {
        /// Places in a row.
        columns: usize,
    },
}

/// The shape alone, as configuration files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// [`Topology::Mesh`].
    #[default]
    Mesh,
    /// [`Topology::Ring`].
    Ring,
    /// [`Topology::Star`].
    Star,
    /// [`Topology::Torus`].
    Torus,
}

impl Topology {
    /// Says why this topology cannot join so many places.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn check(&self, places: usize) -> Result<(), String> {
        match *self {
            Topology::Star { hub } if hub >= places => {
                Err(format!("the hub is place {hub} of {places}"))
            }
            Topology::Torus { columns } if columns == 0 || places % columns != 0 => Err(format!(
                "{places} nodes do not fill rows of {columns}: the columns must divide the nodes"
            )),
            _ => Ok(()),
        }
    }

    /// Coordinates of a place: column and row. All but a torus have one row.
    pub fn coordinates(&self, place: usize) -> (usize, usize) {
        match *self {
            Topology::Torus { columns } => (place % columns, place / columns),
            _ => (place, 0),
        }
    }

    /// The places that the way from `from` to `to` goes through, `from` left out and
    /// `to` last; empty if they are the same.
    ///
    /// The topology was [checked](Self::check) for `places`, and both places exist.
    pub fn route(&self, places: usize, from: usize, to: usize) -> Vec<usize> {
        match *self {
            _ if from == to => Vec::new(),
            Topology::Mesh => vec![to],
            Topology::Star { hub } if from == hub || to == hub => vec![to],
            Topology::Star { hub } => vec![hub, to],
            Topology::Ring => round(places, from, to),
            Topology::Torus { columns } => {
                let row = from / columns * columns;
                let along = round(columns, from % columns, to % columns);
                let across = round(places / columns, from / columns, to / columns);
                let along = along.into_iter().map(|column| row + column);
                let across = across.into_iter().map(|row| row * columns + to % columns);
                along.chain(across).collect()
            }
        }
    }

    /// Says whether two places are joined by one link.
    pub fn joins(&self, places: usize, from: usize, to: usize) -> bool {
        from != to && self.route(places, from, to).len() == 1
    }
}

/// The shorter way round a ring; upwards if both are as long.
fn round(places: usize, from: usize, to: usize) -> Vec<usize> {
    let up = (to + places - from) % places;
    let steps = up.min(places - up);
    (1..=steps)
        .map(|step| match up <= places - up {
            true => (from + step) % places,
            false => (from + places - step) % places,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn routes_are_those_of_the_picture() {
        let torus = Topology::Torus { columns: 3 };
        assert_eq!(torus.route(9, 0, 2), [2]);
        assert_eq!(torus.route(9, 0, 4), [1, 4]);
        assert_eq!(torus.route(9, 1, 8), [2, 8]);
        assert_eq!(torus.coordinates(5), (2, 1));
        assert_eq!(Topology::Ring.route(5, 0, 3), [4, 3]);
        assert_eq!(Topology::Ring.route(4, 0, 2), [1, 2]);
        assert_eq!(Topology::Star { hub: 0 }.route(4, 1, 3), [0, 3]);
        assert_eq!(Topology::Mesh.route(4, 1, 3), [3]);
        assert!(Topology::Mesh.joins(4, 1, 3) && !Topology::Ring.joins(4, 1, 3));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Topology::Torus { columns: 3 }.check(8).is_err());
        assert!(Topology::Torus { columns: 0 }.check(8).is_err());
        assert!(Topology::Star { hub: 4 }.check(4).is_err());
        assert!(Topology::Torus { columns: 4 }.check(8).is_ok());
    }

    fn topology(kind: u8, rows: usize, columns: usize) -> (Topology, usize) {
        let places = rows * columns;
        let topology = match kind {
            0 => Topology::Mesh,
            1 => Topology::Ring,
            2 => Topology::Star { hub: places / 2 },
            _ => Topology::Torus { columns },
        };
        (topology, places)
    }

    proptest! {
        /// Every route ends where it should, takes only links that exist, visits
        /// nobody twice, and is no longer than both halves of a torus.
        #[test]
        fn routes_arrive(kind in 0u8..4, rows in 1usize..6, columns in 1usize..6, a: usize, b: usize) {
            let (topology, places) = topology(kind, rows, columns);
            let (from, to) = (a % places, b % places);
            let route = topology.route(places, from, to);
            prop_assert!(topology.check(places).is_ok());
            prop_assert_eq!(route.last().copied().unwrap_or(from), to);
            let mut at = from;
            for next in &route {
                prop_assert!(topology.joins(places, at, *next));
                at = *next;
            }
            let mut seen = route.clone();
            seen.push(from);
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), route.len() + 1);
            if let Topology::Torus { .. } = topology {
                prop_assert!(route.len() <= rows / 2 + columns / 2);
            }
        }
    }
}
