//! What a protocol keeps of each process.

use qnic_abi::VniId;

/// A value for each process that has needed one, by VNI. There are as many VNIs as
/// windows ([`crate::NicConfig`]), so it is bounded.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(Vec<Option<T>>);

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess(Vec::new())
    }
}

impl<T: Default> PerProcess<T> {
    /// The value of a process, if it has one.
    #[inline]
    pub(crate) fn get(&mut self, vni: VniId) -> Option<&mut T> {
        self.0.get_mut(usize::from(vni.0))?.as_mut()
    }

    /// The same, to look at.
    pub(crate) fn look(&self, vni: VniId) -> Option<&T> {
        self.0.get(usize::from(vni.0))?.as_ref()
    }

    /// The value of a process that has one from now on.
    #[inline]
    pub(crate) fn get_or_insert(&mut self, vni: VniId) -> &mut T {
        let index = usize::from(vni.0);
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_default()
    }

    /// The values of all processes.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// The processes that have values.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (VniId, &mut T)> {
        let values = (0..).zip(&mut self.0);
        values.filter_map(|(vni, value)| Some((VniId(vni), value.as_mut()?)))
    }

    /// Takes the value of a process out.
    pub(crate) fn take(&mut self, vni: VniId) -> Option<T> {
        self.0.get_mut(usize::from(vni.0))?.take()
    }
}
