// Records in one transaction, then an event, with Node's own fetch (Node 18 or newer).
// Set EVENTS_URL, such as http://localhost:8000/events, and EVENTS_TOKEN.
const { EVENTS_URL, EVENTS_TOKEN } = process.env;
const TRIES = 5;

async function post(entries) {
  for (let attempt = 1; ; attempt++) {
    // Without a response it may have been accepted, but sending a record again changes nothing.
    const answer = await fetch(EVENTS_URL, {
      method: "POST",
      headers: { authorization: `Bearer ${EVENTS_TOKEN}`, "content-type": "application/json" },
      body: JSON.stringify(entries),
      signal: AbortSignal.timeout(30_000),
    }).catch((error) => error);
    if (answer.status === 200) return answer.json();
    const comesAgain = answer instanceof Error || answer.status === 503;
    if (!comesAgain || attempt === TRIES) {
      throw answer instanceof Error ? answer : new Error(`${answer.status}: ${await answer.text()}`);
    }
    const seconds = answer instanceof Error ? 1 : Number(answer.headers.get("retry-after")) || 1;
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

const invoices = ["12.50", "7.00"].map((amount, at) => ({
  source: "invoices",
  tenant: "acme",
  key: `node-${at + 1}`,
  document: { amount },
}));
console.log(JSON.stringify(await post(invoices)));
console.log(JSON.stringify(await post({ pipeline: "invoices", tenant: "acme" })));
