// Questions to the server: the newest counts. A reply to an older one never takes the place of a newer one's.

const page = crypto.randomUUID();
let sequence = 0;

export function nextSequence() {
  sequence += 1;
  return sequence;
}

// Returns the reply, or null where a newer question took its turn.
export async function ask(work, asked, number = nextSequence(), signal = undefined) {
  let response;
  try {
    response = await fetch(`api/${work}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ page, sequence: number, asked }),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") return null;
    return failed("rlplan serve does not answer; is it still running?");
  }
  if (response.status === 409) return null;
  if (!response.ok) return failed((await response.text()).trim() || `the server answered ${response.status}`);
  return response.json();
}

export async function catalog() {
  const response = await fetch("api/catalog");
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

// A search: `told` gets its progress; returns the reply, or null where it was stopped.
export async function search(asked, told, signal) {
  let response;
  try {
    response = await fetch("api/search", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ page, sequence: nextSequence(), asked }),
      signal,
    });
    if (!response.ok) return failed((await response.text()).trim());
    return await lastLine(response, told);
  } catch (error) {
    return error.name === "AbortError" ? null : failed("rlplan serve does not answer; is it still running?");
  }
}

async function lastLine(response, told) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let found = null;
  for (;;) {
    const { value, done } = await reader.read();
    rest += value ?? "";
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const read = JSON.parse(line);
      if ("total" in read) told(read);
      else if (read.failed) found = failed(read.failed);
      else if (!read.dropped) found = read;
    }
    if (done) return found;
  }
}

function failed(message) {
  return { answer: null, mistakes: [{ message, problem: message, field: null, argument: null }], sequence: 0 };
}
