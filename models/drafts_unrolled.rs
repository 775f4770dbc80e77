//! What drafters whose steps are unrolled do alike.

/// The methods of [`Drafter`](crate::drafter::Drafter) that follow from [`Unrolls`](crate::unrolls::Unrolls), within an
/// `impl Drafter`.
macro_rules! drafts_unrolled {
    () => {
        fn start(&self, capacity: usize, _: u32) -> crate::draft_state::DraftState {
            let layers = crate::unrolls::Unrolls::layers(self);
            crate::draft_state::DraftState::new(layers, capacity).within(self.sees_back())
        }

        fn observe(
            &self,
            state: &mut crate::draft_state::DraftState,
            tokens: &[u32],
            features: &crate::target::Features,
        ) {
            self.take_in(state, tokens, features);
        }

        fn root_logits(&self, state: &mut crate::draft_state::DraftState) -> Tensor<2> {
            self.read(state.root())
        }

        fn node_logits(
            &self,
            state: &mut crate::draft_state::DraftState,
            tree: &crate::tree::Tree,
            nodes: &[usize],
        ) -> Tensor<2> {
            self.logits_behind(state, tree, nodes)
        }

        fn rewind(&self, state: &mut crate::draft_state::DraftState) {
            state.rewind();
        }

        fn along(
            &self,
            text: &crate::known_text::KnownText,
            take: &mut crate::known_text::TakeLogits,
        ) {
            crate::along::unrolled(self, text, take);
        }
    };
}
pub(crate) use drafts_unrolled;
