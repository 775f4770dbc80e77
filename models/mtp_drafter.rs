//! What layers of multi-token prediction do alike as drafters: their head is the target's.

/// The methods of [`Drafter`](crate::drafter::Drafter), within an `impl Drafter`, of a layer whose head is the target's.
macro_rules! mtp_drafter {
    () => {
        $crate::drafts_unrolled::drafts_unrolled!();

        fn fresh(
            config: &Self::Config,
            target: &crate::target::TargetParts,
            vocabulary: &spectrain_data::vocabulary::DraftVocabulary,
            seed: u64,
            device: &Device,
        ) -> crate::error::Result<Self> {
            let mut weights = crate::untrained::Untrained::beside_head(seed, target, vocabulary);
            Self::new(config, target, vocabulary, &mut weights, device)
        }

        fn parameters_per_pass(&self) -> u64 {
            let all = (self.num_params() + self.frozen.shared_parameters(None)) as u64;
            all - Self::idle_parameters(self.config(), &self.target().spec)
        }

        fn frozen(&self) -> &crate::frozen::Frozen<Self::Config> {
            &self.frozen
        }

        /// What FastMTP trains and drafts with.
        fn draft_length(&self) -> usize {
            3
        }
    };
}
pub(crate) use mtp_drafter;

/// All methods but `new` of a layer that reads the target's last hidden state after the target's final norm and may have
/// experts. Its settings have `check`, `turned` and `mixture`.
macro_rules! mtp_drafter_with_experts {
    () => {
        $crate::mtp_drafter::mtp_drafter!();

        fn check(config: &Self::Config) -> crate::error::Result<()> {
            config.check()
        }

        /// No layer: what it reads is the last hidden state after the target's final norm.
        fn capture(
            config: &Self::Config,
            target: &crate::target::TargetSpec,
        ) -> crate::error::Result<crate::target::Capture> {
            config.turned(target)?;
            Ok(crate::target::Capture::default())
        }

        fn idle_parameters(config: &Self::Config, target: &crate::target::TargetSpec) -> u64 {
            let experts = config.mixture(target);
            experts.map_or(0, |experts| experts.idle_parameters(target.d_model))
        }
    };
}
pub(crate) use mtp_drafter_with_experts;
