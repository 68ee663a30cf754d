//! Objects under numbers, which are given again once an object is gone.

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    marked: Vec<bool>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            marked: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, object: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.places[number as usize] = Some(object);
            return number;
        }
        let number = u32::try_from(self.places.len()).expect("memory is limited");
        self.places.push(Some(object));
        self.marked.push(false);
        number
    }

    pub(crate) fn get(&self, number: u32) -> &T {
        self.places[number as usize]
            .as_ref()
            .expect("an object in use was not collected")
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        self.places[number as usize]
            .as_mut()
            .expect("an object in use was not collected")
    }

    /// Marks an object as in use; returns whether it was not before.
    pub(crate) fn mark(&mut self, number: u32) -> bool {
        assert!(
            self.places[number as usize].is_some(),
            "an object in use was not collected"
        );
        !std::mem::replace(&mut self.marked[number as usize], true)
    }

    pub(crate) fn is_marked(&self, number: u32) -> bool {
        self.marked[number as usize]
    }

    /// Gives up what is not marked, and takes the marks off.
    pub(crate) fn sweep(&mut self, mut gone: impl FnMut(T)) {
        for (number, place) in self.places.iter_mut().enumerate() {
            if std::mem::replace(&mut self.marked[number], false) {
                continue;
            }
            if let Some(object) = place.take() {
                gone(object);
                self.free
                    .push(u32::try_from(number).expect("numbers of objects are small"));
            }
        }
    }
}
