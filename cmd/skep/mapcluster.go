package main

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent/readers/show"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/cmd/skep/internal/clustermaps"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// inCluster runs a command below skep map on a node of the cluster.
func (m *mapCommand) inCluster(cmd *cobra.Command, args []string) error {
	if m.node == "" {
		return errors.New("kubectl skep map reads on a node of the cluster: name it by --node; kubectl get bpfnodes lists them")
	}
	if len(args) == 0 {
		return errors.New("a node lists the maps of one application: write map list APPLICATION --node " + m.node)
	}
	config, namespace, err := m.kube.Load()
	if err != nil {
		return err
	}
	r := clustermaps.Request{Node: m.node, Name: args[0]}
	if of, name, found := strings.Cut(args[0], "/"); found {
		r.Namespace, r.Name = of, name
	} else if m.kube.Chosen() {
		r.Namespace = namespace
	}
	listed, all := []json.RawMessage{}, []show.Map{}
	take := func(line json.RawMessage) error {
		var one show.Map
		err := json.Unmarshal(line, &one)
		listed, all = append(listed, line), append(all, one)
		return err
	}
	if len(args) > 1 {
		r.Map = args[1]
		take = m.takeEntry(cmd)
	}
	if len(args) > 2 {
		r.Key = &args[2]
	}
	if cmd.Name() == "watch" {
		r.Watch, r.Type = true, m.typeName
		take = m.takeRecord(cmd)
	}
	if err := clustermaps.Read(cmd.Context(), config, r, take); err != nil || r.Map != "" {
		return err
	}
	if m.output == "json" {
		return display.JSON(cmd.OutOrStdout(), listed)
	}
	return m.printMaps(cmd, all)
}

// takeEntry prints an entry that comes from a node.
func (m *mapCommand) takeEntry(cmd *cobra.Command) func(json.RawMessage) error {
	return func(line json.RawMessage) error {
		var e show.Entry
		if err := cluster.Decode(line, &e); err != nil {
			return err
		}
		return m.print(cmd.OutOrStdout(), e)
	}
}

// takeRecord prints a record that comes from a node.
func (m *mapCommand) takeRecord(cmd *cobra.Command) func(json.RawMessage) error {
	return func(line json.RawMessage) error {
		var r show.Record
		if err := cluster.Decode(line, &r); err != nil {
			return err
		}
		return m.printRecord(cmd, r)
	}
}
