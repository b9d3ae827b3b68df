// Package mapread is the format of requests of people to read maps on a node, which the controller seals. It reads no map, and
// says nothing of what is loaded.
package mapread

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
)

// PayloadType is the DSSE payload type of a request to read a map.
const PayloadType = "application/vnd.skep.map-read+json"

// Operation is what is read.
type Operation string

// The operations: the maps of an application, all entries of a map, the entry of a key, and records as they come.
const (
	List      Operation = "list"
	Dump      Operation = "dump"
	Get       Operation = "get"
	Watch     Operation = "watch"
	maxKey              = 16 << 10
	maxMapRef           = 512
)

// Request is a request of a person to read a map on a node. It reads, and changes nothing that is loaded. A line of the answer is
// a map, an entry or a record, as skep map -o json prints it.
type Request struct {
	noderequest.Header
	// Application and UID name the application.
	Application v1alpha1.Identity `json:"application"`
	UID         string            `json:"uid"`
	// Operation says what is read, of which Map; Key is that of Get, as skep map get takes it, and Type the struct of a
	// record for Watch.
	Operation Operation `json:"operation"`
	Map       string    `json:"map,omitempty"`
	Key       string    `json:"key,omitempty"`
	Type      string    `json:"type,omitempty"`
}

// PayloadType implements noderequest.Request.
func (Request) PayloadType() string { return PayloadType }

// Check implements noderequest.Request.
func (r Request) Check() error {
	operations := []Operation{List, Dump, Get, Watch}
	switch {
	case r.Application.Kind == "" || r.Application.Name == "" || r.UID == "":
		return errors.New("it names no application")
	case !slices.Contains(operations, r.Operation):
		return fmt.Errorf("operation %.16q is not known; it is one of %v", r.Operation, operations)
	case (r.Map == "") != (r.Operation == List):
		return errors.New("all operations but list name a map")
	case len(r.Key) > maxKey, len(r.Map) > maxMapRef, len(r.Type) > maxMapRef:
		return fmt.Errorf("a name has more than %d bytes, or a key more than %d", maxMapRef, maxKey)
	}
	return nil
}
