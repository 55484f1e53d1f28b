//! Recorded calls → what supervised fine-tuning learns from.

use inference::chat::ChatTokenizer;
use trajectory::{ModelCall, SampledChoice, Trajectory};

/// The trajectories of an episode's calls. Calls without token ids, such as those that another model answered, are
/// tokenised by the policy's own template; recorded ids stay as they are.
///
/// # Errors
/// A request or an answer that the template can't render.
pub(crate) fn demonstration(tokenizer: &ChatTokenizer, mut calls: Vec<ModelCall>) -> anyhow::Result<Vec<Trajectory>> {
    for call in &mut calls {
        let Some(response) = &call.response else { continue };
        if call.choices.iter().any(|choice| !choice.token_ids.is_empty()) {
            continue;
        }
        let (prompt, sampled) = tokenizer.tokenize_call(&call.request, response)?;
        call.prompt_token_ids = Some(prompt);
        let behaviour_logprobs = vec![0.0; sampled.len()];
        call.choices = vec![SampledChoice {
            index: 0,
            token_ids: sampled,
            behaviour_logprobs,
            finish_reason: None,
        }];
    }
    Ok(trajectory::stitch(&calls))
}
