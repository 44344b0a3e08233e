// Records in one transaction, then an event, with Go's standard library: go run post.go
// Set EVENTS_URL, such as http://localhost:8000/events, and EVENTS_TOKEN.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

// Entry is an event, or a record if it has a source, a key and a document.
type Entry struct {
	Source   string `json:"source,omitempty"`
	Pipeline string `json:"pipeline,omitempty"`
	Tenant   string `json:"tenant"`
	Key      string `json:"key,omitempty"`
	Document any    `json:"document,omitempty"`
}

const tries = 5

var client = http.Client{Timeout: 30 * time.Second}

func post(entries ...Entry) (string, error) {
	body, err := json.Marshal(entries)
	if err != nil {
		return "", err
	}
	for attempt := 1; ; attempt++ {
		text, wait, err := try(body)
		if err == nil || wait == 0 || attempt == tries {
			return text, err
		}
		time.Sleep(wait)
	}
}

// try sends a body once; a wait means that it can be sent again after that time.
func try(body []byte) (string, time.Duration, error) {
	request, err := http.NewRequest("POST", os.Getenv("EVENTS_URL"), bytes.NewReader(body))
	if err != nil {
		return "", 0, err
	}
	request.Header.Set("Authorization", "Bearer "+os.Getenv("EVENTS_TOKEN"))
	answer, err := client.Do(request)
	if err != nil {
		// It may have been accepted, but sending a record again changes nothing.
		return "", time.Second, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", time.Second, err
	}
	if answer.StatusCode == http.StatusOK {
		return string(text), 0, nil
	}
	// Without the header the seconds are 0, and the request is not sent again.
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	return "", time.Duration(seconds) * time.Second, fmt.Errorf("%s: %s", answer.Status, text)
}

func main() {
	one := Entry{Source: "invoices", Tenant: "acme", Key: "go-1", Document: map[string]string{"amount": "12.50"}}
	two := Entry{Source: "invoices", Tenant: "acme", Key: "go-2", Document: map[string]string{"amount": "7.00"}}
	event := Entry{Pipeline: "invoices", Tenant: "acme"}
	for _, entries := range [][]Entry{{one, two}, {event}} {
		text, err := post(entries...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(text)
	}
}
