//! Pages of the virtual cluster: the content of a page is a number, and each page is in one place.

use std::cell::Cell;
use std::rc::Rc;

/// The content of a page that its owner has used otherwise.
pub(crate) const USED_OTHERWISE: u64 = u64::MAX;

/// A page. It is not copied: its holder owns it.
#[derive(Debug)]
pub(crate) struct Page(Rc<Cell<u64>>);

/// A page that the NIC reads: it sees changes that the owner makes meanwhile.
#[derive(Debug)]
pub(crate) struct Lent(Rc<Cell<u64>>);

impl Page {
    /// A page with this content.
    pub(crate) fn new(content: u64) -> Self {
        Page(Rc::new(Cell::new(content)))
    }

    /// Its content.
    pub(crate) fn content(&self) -> u64 {
        self.0.get()
    }

    /// Changes its content.
    pub(crate) fn fill(&self, content: u64) {
        self.0.set(content);
    }

    /// Lends it to the NIC.
    pub(crate) fn lend(&self) -> Lent {
        Lent(self.0.clone())
    }

    /// Checks that the NIC does not read it any more, so that its owner may use it otherwise.
    ///
    /// # Panics
    /// If the NIC does.
    pub(crate) fn assert_free(&self) {
        assert_eq!(Rc::strong_count(&self.0), 1, "the NIC still reads a page");
    }

    /// Returns true if two handles are of one page.
    pub(crate) fn is(&self, other: &Lent) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Lent {
    /// Its present content.
    pub(crate) fn content(&self) -> u64 {
        self.0.get()
    }
}
