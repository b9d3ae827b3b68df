package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
)

// GetPluginInfo implements spec.IdentityServer.
func (p *Plugin) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: p.o.Driver.Name, VendorVersion: p.o.Version}, nil
}

// GetPluginCapabilities implements spec.IdentityServer: there is no controller of volumes.
func (p *Plugin) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

// Probe implements spec.IdentityServer.
func (p *Plugin) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// NodeGetInfo implements spec.NodeServer.
func (p *Plugin) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: p.o.Node}, nil
}

// NodeGetCapabilities implements spec.NodeServer: the kubelet tells a pod's fsGroup.
func (p *Plugin) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	return &spec.NodeGetCapabilitiesResponse{Capabilities: []*spec.NodeServiceCapability{{Type: &spec.NodeServiceCapability_Rpc{
		Rpc: &spec.NodeServiceCapability_RPC{Type: spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP},
	}}}}, nil
}

// NodePublishVolume implements spec.NodeServer.
func (p *Plugin) NodePublishVolume(ctx context.Context, in *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	r, err := p.requested(in)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	switch err := p.o.Volumes.Mount(ctx, r); {
	case errors.Is(err, volumes.ErrNotGranted):
		return nil, status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, volumes.ErrTooMany):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, volumes.ErrNotThere):
		// Nothing is mounted, and the kubelet asks again.
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		// Something may be mounted: the kubelet has it unmounted when the pod goes.
		p.o.Log.Error("mount a volume of maps", "volume", r.At.String(), "pod", r.Namespace+"/"+r.Pod, "error", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &spec.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements spec.NodeServer.
func (p *Plugin) NodeUnpublishVolume(ctx context.Context, in *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	at, err := p.target(in.GetVolumeId(), in.GetTargetPath())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := p.o.Volumes.Unmount(ctx, at); err != nil {
		p.o.Log.Error("unmount a volume of maps", "volume", at.String(), "error", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// requested is what the kubelet asks for, for a pod.
func (p *Plugin) requested(in *spec.NodePublishVolumeRequest) (volumes.Request, error) {
	at, err := p.target(in.GetVolumeId(), in.GetTargetPath())
	if err != nil {
		return volumes.Request{}, err
	}
	claim, err := p.o.Driver.claim(in.GetVolumeContext(), at.Pod)
	if err != nil {
		return volumes.Request{}, err
	}
	group, err := groupOf(in.GetVolumeCapability())
	return volumes.Request{At: at, Claim: claim, Group: group}, err
}

// target is the volume whose target a path is. The form of the path is the kubelet's, and nothing else is ever looked at.
func (p *Plugin) target(id, path string) (mounter.Volume, error) {
	if id == "" {
		return mounter.Volume{}, errors.New("the request has no volume_id")
	}
	rest, below := strings.CutPrefix(path, filepath.Join(p.o.Kubelet, "pods")+"/")
	parts := strings.Split(rest, "/")
	if !below || len(parts) != 5 || parts[1] != "volumes" || parts[2] != "kubernetes.io~csi" || parts[4] != "mount" {
		return mounter.Volume{}, fmt.Errorf("target_path %q is not %s/pods/UID/volumes/kubernetes.io~csi/NAME/mount; if the kubelet has another folder, "+
			"name it (--kubelet-dir; in the chart csi.kubeletDir)", path, p.o.Kubelet)
	}
	at := mounter.Volume{Pod: parts[0], Name: parts[3]}
	if err := at.Check(); err != nil {
		return mounter.Volume{}, fmt.Errorf("target_path %q: %w", path, err)
	}
	return at, nil
}

// groupOf is the pod's fsGroup.
func groupOf(c *spec.VolumeCapability) (uint32, error) {
	mount := c.GetMount()
	if mount == nil {
		return 0, errors.New("a volume of maps is a folder; use it in volumeMounts, not in volumeDevices")
	}
	text := mount.GetVolumeMountGroup()
	if text == "" {
		return 0, errors.New("the pod has no group that could be given the maps: set spec.securityContext.fsGroup")
	}
	group, err := strconv.ParseUint(text, 10, 32)
	if err != nil || group == 1<<32-1 {
		return 0, fmt.Errorf("the pod's spec.securityContext.fsGroup is %q, which is no number of a group", text)
	}
	return uint32(group), nil
}
